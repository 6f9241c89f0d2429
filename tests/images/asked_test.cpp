// Each gradient of a convolution is computed only if it is asked for: seen in what the ranks call and in what they tell
// each other.

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/world.h"

namespace intarsia::images_asked_test {
namespace {

using Ints = std::vector<int64_t>;

// The gradients that plain convolution_backward was asked for while this lives: one bit each for input, weight and
// bias.
class Asked {
 public:
  Asked() {
    gradients() = 0;
    handle_ =
        at::addGlobalCallback(at::RecordFunctionCallback(look).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~Asked() { at::removeCallback(handle_); }
  int64_t bits() const { return gradients(); }

 private:
  static std::atomic<int64_t>& gradients() {
    static std::atomic<int64_t> bits;
    return bits;
  }
  static std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& call) {
    if (std::string(call.name()) != "aten::convolution_backward") return nullptr;
    auto inputs = call.inputs();
    if (inputs.empty() || is_dtensor(inputs[0].toTensor())) return nullptr;
    auto mask = inputs.back().toBoolList();
    for (size_t i = 0; i < 3; ++i) gradients() |= mask[i] ? 1 << i : 0;
    return nullptr;
  }
  at::CallbackHandle handle_;
};

struct Form {
  const char* name;
  Ints input, weight;
  bool transposed = false;
  at::ScalarType dtype = at::kDouble;
};

int64_t halos(const CommDebugMode& comms) {
  int64_t count = 0;
  for (auto& event : comms.events()) count += event.kind == "halo";
  return count;
}

[[maybe_unused]] void compare(const Form& f, const DeviceMesh& mesh, const Placements& cut, int64_t wanted) {
  SCOPED_TRACE(c10::str(f.name, " ", str(cut), " asked for ", wanted));
  std::vector<at::Tensor> t, asked;
  for (auto& shape : {f.input, f.weight, Ints{f.weight[0]}}) {
    t.push_back(
        distribute_tensor(at::randn(shape, f.dtype), mesh, t.empty() ? cut : Placements(mesh.ndim(), Replicate())));
    if (wanted >> (t.size() - 1) & 1) asked.push_back(t.back().requires_grad_());
  }
  auto out = at::convolution(t[0], t[1], t[2], {1, 1}, {1, 1}, {1, 1}, f.transposed, {0, 0}, 1);
  auto grad = out.detach();
  CommDebugMode comms;
  Asked plain;
  torch::autograd::grad({out}, asked, {grad});
  EXPECT_EQ(plain.bits(), wanted);
  auto cuts = std::count_if(cut.begin(), cut.end(), [](auto& placement) { return cut_dim(placement) > 1; });
  auto fetched = wanted & 2 ? cuts : 0, returned = wanted & 1 ? cuts : 0;  // rows for the weight, gradients of rows
  EXPECT_EQ(halos(comms), fetched + returned) << comms.text();
}

// Without NDEBUG, as under a sanitizer, LibTorch's header looks at a member of RecordFunction that its release library
// leaves unset.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ConvolutionGradients, AreComputedOnlyIfAskedFor) {
  for_each_world({4}, [](int64_t n) {
    auto line = init_device_mesh(at::kCPU, {n}), square = init_device_mesh(at::kCPU, {2, 2});
    for (auto& f : {Form{"copied", {4, 3, 8, 9}, {3, 3, 3, 3}}, Form{"where it lies", {1, 3, 256, 260}, {3, 3, 3, 3}},
                    Form{"in blocks", {1, 3, 256, 260}, {3, 3, 3, 3}, false, at::kFloat},
                    Form{"transposed", {4, 3, 8, 9}, {3, 3, 3, 3}, true}}) {
      for (int64_t wanted = 1; wanted < 8; ++wanted) {
        compare(f, line, {Shard(3)}, wanted);
        compare(f, line, {Shard(0)}, wanted);
        compare(f, square, {Shard(2), Shard(3)}, wanted);
      }
    }
  });
}
#endif

}  // namespace
}  // namespace intarsia::images_asked_test
