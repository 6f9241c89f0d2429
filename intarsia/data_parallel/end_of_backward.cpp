#include "intarsia/data_parallel/end_of_backward.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/engine.h>

namespace intarsia {
namespace {

// LibTorch drops the callbacks of a pass that fails: that is how we learn of it.
class End {
 public:
  End(std::function<void()> done, std::function<void()> failed) : done_(std::move(done)), failed_(std::move(failed)) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    if (over_) return;
    try {
      failed_();
    } catch (...) {
    }
  }
  void run() {
    over_ = true;
    done_();
  }

 private:
  std::function<void()> done_, failed_;
  bool over_ = false;
};

class GoOn final : public torch::autograd::FunctionPostHook {
 public:
  explicit GoOn(std::function<void()> go_on) : go_on_(std::move(go_on)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    if (auto go_on = std::exchange(go_on_, nullptr)) go_on();  // once, should the pass run again
    return outputs;
  }

 private:
  std::function<void()> go_on_;
};

}  // namespace

void at_end_of_backward(std::function<void()> done, std::function<void()> failed) {
  auto end = std::make_shared<End>(std::move(done), std::move(failed));
  torch::autograd::Engine::get_default_engine().queue_callback([end] { end->run(); });
}

bool is_inside_another_backward() { return torch::autograd::get_current_node() != nullptr; }

void after_recomputation(std::function<void()> go_on) {
  auto node = torch::autograd::get_current_node();
  if (!node->post_hooks().empty()) node->add_post_hook(std::make_unique<GoOn>(std::move(go_on)));
}

}  // namespace intarsia
