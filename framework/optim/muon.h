// Muon on one matrix, as nanochat has it (nanochat/optim.py muon_step_fused): Nesterov momentum,
// row equilibration, an approximate polar factor by matrix products only (The Polar Express),
// NorMuon's variance reduction and cautious weight decay.
#pragma once

#include <array>

#include "framework/core/tensor.h"
#include "framework/device/ops.h"

namespace heddle {

// The Polar Express (arXiv 2505.16932): step i is the odd polynomial a x + b x^3 + c x^5 of the
// singular values, the best one for the interval that step i - 1 left them in. Five steps, bounds
// widened by 2e-2.
struct PolarStep {
  float a, b, c;
};
inline constexpr int kPolarSteps = 5;
inline constexpr std::array<PolarStep, kPolarSteps> kPolarExpress = {{
    {8.156554524902461f, -22.48329292557795f, 15.878769915207462f},
    {4.042929935166739f, -2.808917465908714f, 0.5000178451051316f},
    {3.8916678022926607f, -2.772484153217685f, 0.5060648178503393f},
    {3.285753657755655f, -2.3681294933425376f, 0.46449024233003106f},
    {2.3465413258596377f, -1.7097828382687081f, 0.42323551169305323f},
}};

// Decay of NorMuon's second moments (arXiv 2510.05491).
inline constexpr float kNorMuonBeta2 = 0.9f;

// x (m, n), of spectral norm below 1, becomes nearly its polar factor U V^T. With k = min(m, n):
// gram and poly are (k, k) scratch, spare is (m, n) scratch. Returns where the result is: x or
// spare. Products are on the smaller side: X^T X for tall matrices, X X^T for others.
Matrix polar_express(Ops& ops, const Matrix& x, const Matrix& spare, const Matrix& gram,
                     const Matrix& poly);

// One worker's memory: x and spare hold rows * cols, gram and poly min(rows, cols)^2 floats.
struct MuonScratch {
  float* x = nullptr;
  float* spare = nullptr;
  float* gram = nullptr;
  float* poly = nullptr;
};

// p (rows, cols) <- one step with grad; `values` are on the device. momentum (rows, cols) and
// second (rows values if rows >= cols, else cols) are the state, zero before the first step.
void muon_update(Ops& ops, const MuonValues* values, int64_t rows, int64_t cols, const float* grad,
                 float* p, float* momentum, float* second, const MuonScratch& scratch);

}  // namespace heddle
