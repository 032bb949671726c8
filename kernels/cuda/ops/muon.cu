// Muon's elementwise parts. Norms of lines (rows or columns) are fp64; what is common to all lines
// is computed by one block.
#include "kernels/cuda/ops/ops.h"
#include "kernels/cuda/ops/parts.cuh"

namespace heddle::kernels::cuda::ops {
namespace {

constexpr unsigned kLineThreads = 256;
constexpr int64_t kColumnRows = 64;  // of a piece of a column's sum

__global__ void __launch_bounds__(kThreads) momentum_rows(MuonPrepare op, double* squares) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Muon values = *op.values;
  for_my_rows(op.rows, [&](int64_t r) {
    const int64_t at = r * op.cols;
    double sum = 0;
    for (int64_t c = lane; c < op.cols; c += 32) {
      const float g = op.grad[at + c] * values.grad_scale;
      const float old = op.m[at + c];
      const float mean = old + (1.0f - values.momentum) * (g - old);
      const float ahead = g + values.momentum * (mean - g);
      op.m[at + c] = mean;
      op.x[at + c] = ahead;
      sum += static_cast<double>(ahead * ahead);
    }
    sum = warp_sum(sum);
    if (lane == 0) squares[r] = sum;
  });
}

// Factors that give all rows the norm they have on average, and x the wanted norm. One block.
__global__ void __launch_bounds__(kLineThreads)
    equal_rows(const double* squares, int64_t rows, float* factors) {
  double sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kLineThreads) sum += squares[r];
  const double wanted = sqrt(block_sum(sum) / static_cast<double>(rows));
  const auto factor = [&](int64_t r) {
    const double norm = sqrt(squares[r]);
    return wanted / (norm > 1e-6 ? norm : 1e-6);
  };
  double after = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kLineThreads) {
    after += squares[r] * factor(r) * factor(r);
  }
  const double divisor = 1.01 * sqrt(block_sum(after)) + 1e-6;
  for (int64_t r = threadIdx.x; r < rows; r += kLineThreads) {
    factors[r] = static_cast<float>(factor(r) / divisor);
  }
}

__global__ void __launch_bounds__(kThreads)
    scale_rows(float* x, int64_t rows, int64_t cols, const float* factors) {
  for_my_rows(rows, [&](int64_t r) {
    for (int64_t c = threadIdx.x % 32; c < cols; c += 32) x[r * cols + c] *= factors[r];
  });
}

__global__ void __launch_bounds__(kThreads)
    square_rows(const float* x, int64_t rows, int64_t cols, double* squares) {
  for_my_rows(rows, [&](int64_t r) {
    double sum = 0;
    for (int64_t c = threadIdx.x % 32; c < cols; c += 32) {
      sum += static_cast<double>(x[r * cols + c] * x[r * cols + c]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) squares[r] = sum;
  });
}

// partial (pieces, cols): a thread takes a column of kColumnRows rows.
__global__ void __launch_bounds__(kThreads)
    square_columns(const float* x, int64_t rows, int64_t cols, double* partial) {
  const int64_t cuts = (cols + kThreads - 1) / kThreads;
  const int64_t piece = blockIdx.x / cuts;
  const int64_t c = static_cast<int64_t>(blockIdx.x) % cuts * kThreads + threadIdx.x;
  if (c >= cols) return;
  const int64_t begin = piece * kColumnRows;
  const int64_t end = begin + kColumnRows < rows ? begin + kColumnRows : rows;
  double sum = 0;
  for (int64_t r = begin; r < end; ++r) sum += static_cast<double>(x[r * cols + c] * x[r * cols + c]);
  partial[piece * cols + c] = sum;
}

__global__ void __launch_bounds__(kThreads)
    add_columns(const double* partial, int64_t pieces, int64_t cols, double* squares) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= cols) return;
  double sum = 0;
  for (int64_t p = 0; p < pieces; ++p) sum += partial[p * cols + c];
  squares[c] = sum;
}

// The factor of every line: norm snap times NorMuon's weight, with the norm that x had. One block.
__global__ void __launch_bounds__(kLineThreads)
    line_factors(MuonFinish op, int64_t lines, int64_t length, const double* squares,
                 float* factors) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < lines; i += kLineThreads) sum += squares[i];
  const double norm = sqrt(block_sum(sum));
  const double snap = sqrt(static_cast<double>(length)) / (norm > 1e-6 ? norm : 1e-6);
  double before = 0, after = 0;
  for (int64_t i = threadIdx.x; i < lines; i += kLineThreads) {
    const double total = squares[i] * snap * snap;
    const double old = op.second[i];
    op.second[i] = static_cast<float>(
        old + (1.0 - op.beta2) * (total / static_cast<double>(length) - old));
    const double second = op.second[i];
    const double weight = 1.0 / sqrt(second > 1e-10 ? second : 1e-10);
    before += total;
    after += total * weight * weight;
  }
  before = block_sum(before);
  after = sqrt(block_sum(after));
  const double restore = snap * sqrt(before) / (after > 1e-10 ? after : 1e-10);
  for (int64_t i = threadIdx.x; i < lines; i += kLineThreads) {
    const double second = op.second[i];
    factors[i] = static_cast<float>(restore / sqrt(second > 1e-10 ? second : 1e-10));
  }
}

__global__ void __launch_bounds__(kThreads)
    update_rows(MuonFinish op, bool by_row, const float* factors) {
  const float lr = op.values->lr, decay = lr * op.values->weight_decay;
  for_my_rows(op.rows, [&](int64_t r) {
    for (int64_t c = threadIdx.x % 32; c < op.cols; c += 32) {
      const int64_t at = r * op.cols + c;
      const float u = op.x[at] * factors[by_row ? r : c], old = op.p[at];
      op.p[at] = old - lr * u - (u * old >= 0.0f ? decay * old : 0.0f);
    }
  });
}

struct FinishMemory {
  FinishMemory(void* workspace, int64_t rows, int64_t cols)
      : by_row(rows >= cols),
        lines(by_row ? rows : cols),
        column_pieces((rows + kColumnRows - 1) / kColumnRows) {
    Pieces pieces(workspace);
    squares = pieces.take<double>(lines);
    factors = pieces.take<float>(lines);
    partial = pieces.take<double>(by_row ? 0 : column_pieces * cols);
    bytes = pieces.used();
  }
  bool by_row;
  int64_t lines, column_pieces;
  double *squares, *partial;
  float* factors;
  size_t bytes;
};

}  // namespace

size_t muon_prepare_workspace(int64_t rows) {
  Pieces pieces(nullptr);
  pieces.take<double>(rows);
  pieces.take<float>(rows);
  return pieces.used();
}
cudaError_t muon_prepare(const MuonPrepare& op, void* workspace, cudaStream_t stream) {
  Pieces pieces(workspace);
  auto* squares = pieces.take<double>(op.rows);
  auto* factors = pieces.take<float>(op.rows);
  const unsigned blocks = blocks_for(op.rows, kWarps);
  cudaError_t error = launch(momentum_rows, blocks, kThreads, 0, stream, op, squares);
  if (error != cudaSuccess) return error;
  error = launch(equal_rows, 1, kLineThreads, kBlockSumBytes, stream, squares, op.rows, factors);
  if (error != cudaSuccess) return error;
  return launch(scale_rows, blocks, kThreads, 0, stream, op.x, op.rows, op.cols, factors);
}

size_t muon_finish_workspace(int64_t rows, int64_t cols) {
  return FinishMemory(nullptr, rows, cols).bytes;
}
cudaError_t muon_finish(const MuonFinish& op, void* workspace, cudaStream_t stream) {
  const FinishMemory memory(workspace, op.rows, op.cols);
  const unsigned row_blocks = blocks_for(op.rows, kWarps);
  cudaError_t error;
  if (memory.by_row) {
    error = launch(square_rows, row_blocks, kThreads, 0, stream, op.x, op.rows, op.cols,
                   memory.squares);
  } else {
    const auto cuts = static_cast<unsigned>((op.cols + kThreads - 1) / kThreads);
    error = launch(square_columns, cuts * static_cast<unsigned>(memory.column_pieces), kThreads, 0,
                   stream, op.x, op.rows, op.cols, memory.partial);
    if (error != cudaSuccess) return error;
    error = launch(add_columns, cuts, kThreads, 0, stream, memory.partial, memory.column_pieces,
                   op.cols, memory.squares);
  }
  if (error != cudaSuccess) return error;
  const int64_t length = memory.by_row ? op.cols : op.rows;
  error = launch(line_factors, 1, kLineThreads, kBlockSumBytes, stream, op, memory.lines, length,
                 memory.squares, memory.factors);
  if (error != cudaSuccess) return error;
  return launch(update_rows, row_blocks, kThreads, 0, stream, op, memory.by_row, memory.factors);
}

}  // namespace heddle::kernels::cuda::ops
