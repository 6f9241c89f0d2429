// Parameters that are registered after replicate or fully_shard, wherever the module lives: an error that names them at
// the end of the next backward pass.

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/data_parallel/weak_module.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_late_parameters_test {
namespace {

namespace nn = torch::nn;

struct Net : nn::Module {
  Net() : w(register_parameter("w", inputs(0, {7, 5}))) {}
  at::Tensor forward(const at::Tensor& x) {
    auto out = at::linear(x, w);
    if (late.defined()) out = out + late;
    return head ? head->forward(out) : out;
  }
  at::Tensor w, late;
  std::shared_ptr<nn::LinearImpl> head;
};

// A net in a module in a module.
struct Nested : nn::Module {
  Nested() : outer(register_module("outer", nn::Sequential())) {
    net = std::make_shared<Net>();
    outer->push_back(nn::AnyModule(net));
  }
  at::Tensor forward(const at::Tensor& x) { return net->forward(x); }
  nn::Sequential outer;
  std::shared_ptr<Net> net;
};

void pass(nn::Module& model, Net& net) {
  model.zero_grad();
  net.forward(mine(inputs(0, {24, 5}), all_ranks())).square().mean().backward();
}

void register_late(Net& net, bool child) {
  if (!child) {
    net.late = net.register_parameter("late", inputs(1, {7}));
    return;
  }
  net.head = net.register_module("head", nn::Linear(nn::LinearOptions(7, 2).bias(false)).ptr());
  net.head->to(at::kDouble);
}

// `model` is wrapped, and a part of it, `net`, gets something new.
void expect_named(nn::Module& model, Net& net, const std::string& prefix, bool shards, bool child) {
  shards ? void(fully_shard(model, all_ranks())) : void(replicate(model, all_ranks()));
  pass(model, net);
  register_late(net, child);
  auto text = error_text<c10::Error>([&] { pass(model, net); });
  auto name = prefix + (child ? "head.weight" : "late");
  EXPECT_NE(text.find(name), std::string::npos) << text;
  EXPECT_NE(text.find("was registered after"), std::string::npos) << text;
  if (!shards) replicate(model, all_ranks()), pass(model, net);
}

TEST(LateParameters, AreNamedWhereverTheModuleLives) {
  in_every_world([] {
    for (bool shards : {false, true}) {
      for (bool child : {false, true}) {
        SCOPED_TRACE(c10::str(shards ? "fully_shard" : "replicate", child ? ", a child" : ", a parameter"));
        auto owned = std::make_shared<Net>();
        expect_named(*owned, *owned, "", shards, child);
        Net on_the_stack;
        expect_named(on_the_stack, on_the_stack, "", shards, child);
        auto nested = std::make_shared<Nested>();
        expect_named(*nested, *nested->net, "outer.0.", shards, child);
        Nested nested_on_the_stack;
        expect_named(nested_on_the_stack, *nested_on_the_stack.net, "outer.0.", shards, child);
      }
    }
  });
}

TEST(LateParameters, OfAModuleThatIsWrappedTwiceAreNamed) {
  auto world = simulate(2);
  Net net;
  replicate(net, all_ranks());
  register_late(net, true);
  replicate(net, all_ranks());  // takes what is new
  pass(net, net);
  net.late = net.register_parameter("late", inputs(1, {7}));
  EXPECT_NE(error_text<c10::Error>([&] { pass(net, net); }).find("late of"), std::string::npos);
}

TEST(WeakModules, GoWhenTheModuleDoes) {
  std::optional<Net> net(std::in_place);
  WeakModule weak(*net), other(*net);
  EXPECT_EQ(weak.lock().get(), &*net);
  EXPECT_TRUE(net->weak_from_this().expired());
  Net copy(*net);
  net.emplace();  // at the same address
  EXPECT_TRUE(weak.expired() && other.expired());
  WeakModule of_second(*net);
  EXPECT_FALSE(of_second.expired());
  net.reset();
  EXPECT_TRUE(of_second.expired());
  auto owned = std::make_shared<Net>();
  WeakModule of_owned(*owned);
  EXPECT_EQ(of_owned.lock(), owned);
  owned.reset();
  EXPECT_TRUE(of_owned.expired());
}

}  // namespace
}  // namespace intarsia::data_parallel_late_parameters_test
