#include "plugins/conformance/call.h"

#include <cstring>
#include <stdexcept>

#include "plugins/conformance/compare.h"
#include "plugins/conformance/dtype.h"
#include "plugins/conformance/faults.h"
#include "plugins/conformance/layout.h"

namespace heddle::conformance {
namespace {

const char* status_text(uint32_t status) {
  constexpr const char* kNames[] = {
      "OK", "REFUSED", "INVALID_ARG", "UNSUPPORTED", "OUT_OF_MEMORY", "DEVICE_ERROR", "INTERNAL"};
  return status < std::size(kNames) ? kNames[status] : "an unknown status";
}

// A storage on its device and its image on the host.
class Buffer {
 public:
  Buffer(Memory& memory, const char* label, size_t bytes, const Case& c, size_t align)
      : memory_(memory), label_(label), image(bytes, std::byte(c.poison)) {
    block_ = memory.allocate(bytes, align, c.edge, label);
  }
  ~Buffer() { memory_.release(block_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data(int64_t byte_offset = 0) const {
    return static_cast<char*>(block_.data) + byte_offset;
  }
  void upload() { memory_.upload(block_, image.data()); }
  std::vector<std::byte> download() {
    std::vector<std::byte> bytes(image.size());
    memory_.download(block_, bytes.data());
    return bytes;
  }
  // Bytes outside the buffer that were written.
  std::string overrun() {
    int64_t offset = 0;
    if (!memory_.overrun(block_, &offset)) return {};
    const std::string where = offset >= 0 ? std::to_string(offset) + " bytes past the end of "
                                          : std::to_string(-offset) + " bytes before ";
    return "writes " + where + label_;
  }
  const char* label() const { return label_; }

 private:
  Memory& memory_;
  const char* label_;
  Block block_;

 public:
  std::vector<std::byte> image;  // as uploaded
};

// Moves a tensor between its contiguous form and the image of its storage.
template <class Move>
void for_rows(const Shape& s, const Placement& p, Move&& move) {
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t d = 0; d < s.dim; ++d) move(s.at(b, h, t, d), p.index(b, t, h) + d);
      }
    }
  }
}

struct Tensor {
  const char* name;
  const Placement* place;
  const std::vector<float>* input;  // null: written by the call
  std::vector<float>* output;
};

class Call {
 public:
  Call(Session& session, const Case& c, const Arrays& inputs, const CallOptions& options)
      : session_(session), c_(c), inputs_(inputs), options_(options), layout_(lay_out(c)) {}

  CallResult run() {
    problem_ = session_.problem(c_, layout_);
    problem_.max_workspace = options_.max_workspace;
    result_.answer = session_.query(problem_);
    const Answer& answer = result_.answer;
    if (!answer.violation.empty()) {
      result_.trouble = answer.violation;
    } else if (!answer.supported) {
      result_.refusal = answer.refusal();
    } else {
      prepare();
      enter();
      if (!session_.lost()) collect();
    }
    return std::move(result_);
  }

 private:
  std::vector<Tensor> tensors() {
    Arrays& got = result_.got;
    if (c_.op != HEDDLE_OP_BACKWARD) {
      return {{"q", &layout_.q, &inputs_.q, nullptr},
              {"k", &layout_.k, &inputs_.k, nullptr},
              {"v", &layout_.v, &inputs_.v, nullptr},
              {"out", &layout_.out, nullptr, &got.out}};
    }
    return {{"q", &layout_.q, &inputs_.q, nullptr},
            {"k", &layout_.k, &inputs_.k, nullptr},
            {"v", &layout_.v, &inputs_.v, nullptr},
            {"out", &layout_.out, &inputs_.out, nullptr},
            {"dout", &layout_.dout, &inputs_.dout, nullptr},
            {"dq", &layout_.dq, nullptr, &got.dq},
            {"dk", &layout_.dk, nullptr, &got.dk},
            {"dv", &layout_.dv, nullptr, &got.dv}};
  }

  bool has_lse() const { return layout_.lse_stride_head != 0 || layout_.lse_elements != 0; }
  int64_t lse_index(int64_t b, int64_t h, int64_t i) const {
    return b * layout_.lse_stride_batch + h * layout_.lse_stride_head + i;
  }

  void prepare() {
    const int64_t size = element_bytes(c_.dtype);
    for (const Storage& s : layout_.storages) {
      storages_.push_back(std::make_unique<Buffer>(session_.memory(), s.label.c_str(),
                                                   static_cast<size_t>(s.elements * size), c_,
                                                   c_.align));
    }
    for (const Tensor& t : tensors()) {
      if (t.input == nullptr) continue;
      std::byte* image = storages_[static_cast<size_t>(t.place->storage)]->image.data();
      for_rows(shape_of(c_, t.name), *t.place, [&](size_t n, int64_t at) {
        store_element(c_.dtype, (*t.input)[n], image + at * size);
      });
    }
    prepare_lse();
    if (c_.op == HEDDLE_OP_DECODE) {
      kv_len_ = std::make_unique<Buffer>(session_.memory(), "kv_len", c_.kv_len.size() * 4, c_, 4);
      if (!c_.kv_len.empty()) {
        std::memcpy(kv_len_->image.data(), c_.kv_len.data(), kv_len_->image.size());
      }
    }
    const Answer& answer = result_.answer;
    workspace_ = std::make_unique<Buffer>(session_.memory(), "the workspace",
                                          answer.workspace_bytes, c_, answer.workspace_align);
    if (options_.workspace && options_.workspace->size() == workspace_->image.size()) {
      workspace_->image = *options_.workspace;
    }
    for (auto& s : storages_) s->upload();
    for (Buffer* b : {lse_.get(), kv_len_.get(), workspace_.get()}) {
      if (b) b->upload();
    }
  }

  void prepare_lse() {
    if (!has_lse()) return;
    lse_ = std::make_unique<Buffer>(session_.memory(), "lse",
                                    static_cast<size_t>(layout_.lse_elements) * 4, c_,
                                    std::max<size_t>(c_.align, 4));
    if (c_.op != HEDDLE_OP_BACKWARD) return;
    const Shape s = shape_of(c_, "lse");
    for (int64_t b = 0; b < c_.batch; ++b) {
      for (int64_t h = 0; h < c_.n_head; ++h) {
        for (int64_t i = 0; i < c_.q_len; ++i) {
          store_element(HEDDLE_DTYPE_F32, inputs_.lse[s.at(b, h, i, 0)],
                        lse_->image.data() + lse_index(b, h, i) * 4);
        }
      }
    }
  }

  void* pointer(const Placement& p) const {
    if (p.storage < 0) return nullptr;
    return storages_[static_cast<size_t>(p.storage)]->data(p.offset * element_bytes(c_.dtype));
  }

  heddle_attention_call make_call(heddle_text* err) const {
    heddle_attention_call call{};
    call.struct_size = sizeof call;
    call.q = pointer(layout_.q);
    call.k = pointer(layout_.k);
    call.v = pointer(layout_.v);
    call.out = pointer(layout_.out);
    call.lse = lse_ ? static_cast<float*>(lse_->data()) : nullptr;
    call.dout = pointer(layout_.dout);
    call.dq = pointer(layout_.dq);
    call.dk = pointer(layout_.dk);
    call.dv = pointer(layout_.dv);
    call.kv_len = kv_len_ ? static_cast<const int32_t*>(kv_len_->data()) : nullptr;
    call.workspace = result_.answer.workspace_bytes > 0 ? workspace_->data() : nullptr;
    call.workspace_bytes = result_.answer.workspace_bytes;
    call.stream = session_.target().stream;
    call.err = err;
    return call;
  }

  void enter() {
    const heddle_attention_plugin& table = session_.table();
    const auto function = c_.op == HEDDLE_OP_FORWARD    ? table.forward
                          : c_.op == HEDDLE_OP_BACKWARD ? table.backward
                                                        : table.decode;
    Host& host = session_.host(c_.workers);
    heddle_attention_ctx* ctx = options_.ctx ? options_.ctx : session_.context(c_.workers);
    host.set_order(c_.order);
    char text[200] = {};
    heddle_text err{text, sizeof text, 0};
    const heddle_attention_call call = make_call(&err);
    session_.progress(to_spec(c_));
    uint32_t status = HEDDLE_OK;
    std::optional<Fault> fault;
    {
      const Host::Entry entry;
      if (options_.before) options_.before();
      fault = run_guarded([&] { status = function(ctx, &problem_, &call); });
      if (options_.after) options_.after();
    }
    const std::string host_trouble = host.take_trouble();
    const std::string device_trouble = session_.memory().finish();
    const std::string name = op_name(c_.op);
    if (!device_trouble.empty()) {
      session_.lose();
      result_.trouble = name + " breaks the device: " + device_trouble;
    } else if (fault) {
      result_.trouble = name + " crashes: " + fault->text;
    } else if (!host_trouble.empty()) {
      result_.trouble =
          name + " " + (host_trouble.starts_with("SIG") ? "crashes: " : "") + host_trouble;
    } else if (status != HEDDLE_OK) {
      result_.trouble = name + " breaks the promise of query(): it returns " + status_text(status) +
                        " \"" + text + "\" although query said yes";
    }
  }

  void note(const std::string& what) {
    if (result_.trouble.empty()) result_.trouble = std::string(op_name(c_.op)) + " " + what;
  }

  void collect() {
    std::vector<std::vector<std::byte>> after;
    for (auto& s : storages_) after.push_back(s->download());
    const int64_t size = element_bytes(c_.dtype);
    for (const Tensor& t : tensors()) {
      if (t.output == nullptr) continue;
      const auto storage = static_cast<size_t>(t.place->storage);
      const Shape s = shape_of(c_, t.name);
      t.output->resize(static_cast<size_t>(s.batch * s.tokens * s.heads * s.dim));
      for_rows(s, *t.place, [&](size_t n, int64_t at) {
        const std::byte* source = after[storage].data() + at * size;
        (*t.output)[n] = load_element(c_.dtype, source);
        // What may change is not compared below.
        std::memcpy(storages_[storage]->image.data() + at * size, source,
                    static_cast<size_t>(size));
      });
    }
    collect_lse();
    for (size_t i = 0; i < storages_.size(); ++i) check_storage(i, after[i]);
    if (kv_len_ && kv_len_->download() != kv_len_->image) note("changes kv_len");
    for (Buffer* b : {lse_.get(), kv_len_.get(), workspace_.get()}) {
      if (b == nullptr) continue;
      if (const std::string what = b->overrun(); !what.empty()) note(what);
    }
    if (options_.workspace) *options_.workspace = workspace_->download();
  }

  void collect_lse() {
    if (!lse_) return;
    const std::vector<std::byte> after = lse_->download();
    if (c_.op == HEDDLE_OP_BACKWARD) {
      if (after != lse_->image) note("changes lse, which it only reads");
      return;
    }
    const Shape s = shape_of(c_, "lse");
    std::vector<std::byte> expected = lse_->image;
    result_.got.lse.resize(static_cast<size_t>(lse_elements(c_)));
    for (int64_t b = 0; b < c_.batch; ++b) {
      for (int64_t h = 0; h < c_.n_head; ++h) {
        for (int64_t i = 0; i < c_.q_len; ++i) {
          const int64_t at = lse_index(b, h, i) * 4;
          result_.got.lse[s.at(b, h, i, 0)] = load_element(HEDDLE_DTYPE_F32, after.data() + at);
          std::memcpy(expected.data() + at, after.data() + at, 4);
        }
      }
    }
    if (after != expected) note("writes into a gap between the rows of lse");
  }

  // Bytes of a storage that are no element of a result must be as before.
  void check_storage(size_t index, const std::vector<std::byte>& after) {
    const Storage& s = layout_.storages[index];
    Buffer& buffer = *storages_[index];
    if (const std::string what = buffer.overrun(); !what.empty()) note(what);
    for (size_t i = 0; i < after.size(); ++i) {
      if (after[i] == buffer.image[i]) continue;
      const auto element = static_cast<int64_t>(i) / element_bytes(c_.dtype);
      note(s.is_output ? "writes into a gap between rows of " + s.label + " (element " +
                             std::to_string(element) + " of its buffer): strides ignored?"
                       : "changes its input " + s.label + " (element " + std::to_string(element) +
                             " of its buffer)");
      return;
    }
  }

  Session& session_;
  const Case& c_;
  const Arrays& inputs_;
  const CallOptions& options_;
  CallLayout layout_;
  heddle_attention_problem problem_{};
  std::vector<std::unique_ptr<Buffer>> storages_;
  std::unique_ptr<Buffer> lse_, kv_len_, workspace_;
  CallResult result_;
};

}  // namespace

CallResult call_plugin(Session& session, const Case& c, const Arrays& inputs,
                       const CallOptions& options) {
  return Call(session, c, inputs, options).run();
}

}  // namespace heddle::conformance
