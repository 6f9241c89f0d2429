// Trains a small U-Net on one large image that is cut along its width over four ranks: strided, dilated and transposed
// convolutions, pooling, batch norm and skip connections. The model is plain torch::nn, the optimizer plain
// torch::optim.
//
// Run it by itself, and this process plays all four ranks:
//   build/examples/5_unet
// or as four processes:
//   intarsia run -n 4 build/examples/5_unet
// An argument is the width of the image, a multiple of 4: intarsia run -n 4 build/examples/5_unet 2048
//
// It prints the loss of every step beside the loss of the same step on one rank, how much memory tensors took at most
// (as four processes on a wide image: a quarter), and what the ranks told each other in the last step. It ends with an
// error if two losses differ by more than 1e-5.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>

#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include "intarsia/intarsia.h"

namespace nn = torch::nn;
using intarsia::Shard;

namespace {

constexpr int kSteps = 5;
constexpr int64_t kHeight = 64, kChannels = 8, kClasses = 3;

// Counts the bytes of the tensors of this process. The size of a block stands in a header before it.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = static_cast<char*>(std::aligned_alloc(kHeader, kHeader + (bytes + kHeader - 1) / kHeader * kHeader));
    TORCH_CHECK(block, "no memory for ", bytes, " bytes");
    std::memcpy(block, &bytes, sizeof bytes);
    auto now = now_ += bytes;
    if (now > peak_) peak_ = now;
    return {block + kHeader, block + kHeader, release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  void start() { peak_ = now_.load(), before_ = now_.load(); }
  double peak_mb() const { return static_cast<double>(peak_ - before_) * 1e-6; }  // above what there was at the start

 private:
  static constexpr size_t kHeader = 64;
  static void release(void* data);
  std::atomic<size_t> now_{0}, peak_{0}, before_{0};
};

CountingAllocator& memory() {
  static auto* allocator = new CountingAllocator;
  return *allocator;
}

void CountingAllocator::release(void* data) {
  auto* block = static_cast<char*>(data) - kHeader;
  size_t bytes;
  std::memcpy(&bytes, block, sizeof bytes);
  memory().now_ -= bytes;
  std::free(block);
}

nn::Sequential block(nn::Conv2dOptions options) {
  return nn::Sequential(nn::Conv2d(options.bias(false)), nn::BatchNorm2d(options.out_channels()), nn::ReLU());
}

struct UNetImpl : nn::Module {
  UNetImpl() {
    auto c = kChannels;
    fine = register_module("fine", block(nn::Conv2dOptions(3, c, 3).padding(1)));
    down = register_module("down", block(nn::Conv2dOptions(c, 2 * c, 3).stride(2).padding(1)));
    bottom = register_module("bottom", block(nn::Conv2dOptions(2 * c, 4 * c, 3).dilation(2).padding(2)));
    up1 = register_module("up1", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4 * c, 2 * c, 2).stride(2)));
    join1 = register_module("join1", block(nn::Conv2dOptions(4 * c, 2 * c, 3).padding(1)));
    up2 = register_module("up2", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(2 * c, c, 4).stride(2).padding(1)));
    join2 = register_module("join2", block(nn::Conv2dOptions(2 * c, c, 3).padding(1)));
    last = register_module("last", nn::Conv2d(nn::Conv2dOptions(c, kClasses, 1)));
  }
  torch::Tensor forward(const torch::Tensor& image) {
    auto full = fine->forward(image);
    auto half = down->forward(full);
    auto quarter = bottom->forward(torch::max_pool2d(half, 2));
    auto x = join1->forward(torch::cat({up1->forward(quarter), half}, 1));
    return last->forward(join2->forward(torch::cat({up2->forward(x), full}, 1)));
  }
  nn::Sequential fine{nullptr}, down{nullptr}, bottom{nullptr}, join1{nullptr}, join2{nullptr};
  nn::ConvTranspose2d up1{nullptr}, up2{nullptr};
  nn::Conv2d last{nullptr};
};
TORCH_MODULE(UNet);

// Ordinary LibTorch code: it does not know whether its tensors are distributed.
std::vector<double> train(UNet& model, const torch::Tensor& image, const torch::Tensor& labels,
                          intarsia::CommDebugMode& comms) {
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    comms.enter();  // keeps the last step only
    optimizer.zero_grad();
    auto loss = nn::functional::cross_entropy(model(image), labels);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  comms.exit();
  return losses;
}

UNet first_model() {
  torch::manual_seed(1);
  return UNet();
}

}  // namespace

int main(int argc, char** argv) {
  c10::SetCPUAllocator(&memory(), 1);
  intarsia::init();  // joins the ranks that a launcher started; alone, a world of one
  std::optional<intarsia::Simulation> simulation;
  if (intarsia::current_world().size() == 1) simulation.emplace(4);
  auto mesh = intarsia::init_device_mesh(torch::kCPU, {4}, {"width"});
  auto played = static_cast<double>(intarsia::current_world().hosted().size());

  torch::manual_seed(0);
  auto width = argc > 1 ? std::atoll(argv[1]) : 244;  // over 4 ranks: 61 columns each, 31, 31, 31, 29 at half the width
  auto image = torch::randn({1, 3, kHeight, width});
  auto labels = torch::randint(kClasses, {1, kHeight, width});
  auto cut_image = intarsia::distribute_tensor(image, mesh, {Shard(3)});
  auto cut_labels = intarsia::distribute_tensor(labels, mesh, {Shard(2)});

  auto model = first_model();
  intarsia::distribute_module(*model, mesh);  // every rank holds all parameters
  intarsia::CommDebugMode comms(false), nothing(false);
  memory().start();
  auto losses = train(model, cut_image, cut_labels, comms);
  auto own_peak = torch::tensor({memory().peak_mb() / played});  // this process's; a simulation's is that of all ranks
  auto cut_peak =
      intarsia::full_tensor(intarsia::from_local(own_peak, mesh, {intarsia::Partial(intarsia::ReduceOp::max)}))
          .item<double>();
  if (intarsia::current_world().hosted()[0] != 0) return 0;  // one of the ranks speaks for all

  auto alone = first_model();
  memory().start();
  auto expected = train(alone, image, labels, nothing);
  auto alone_peak = memory().peak_mb();

  std::printf("step  loss on the cut image  on one rank\n");
  bool same = comms.fallbacks().empty();  // no op on whole tensors
  for (int step = 0; step < kSteps; ++step) {
    bool agree = std::abs(losses[step] - expected[step]) <= 1e-5;
    same = same && agree;
    std::printf("%4d  %21.7f  %11.7f%s\n", step, losses[step], expected[step], agree ? "" : "  DIFFERS");
  }
  std::printf("\npeak memory of tensors: %.2f MB on the rank with the most, %.2f MB on one rank: %.2f of it\n\n",
              cut_peak, alone_peak, cut_peak / alone_peak);
  std::fflush(stdout);
  std::cout << "What a rank sent or received in the last step:\n"
            << comms.table() << "\n"
            << (same ? "every loss is that of one rank to 1e-5" : "A LOSS DIFFERS") << std::endl;
  return same ? 0 : 1;
}
