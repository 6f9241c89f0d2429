#include "intarsia/data_parallel/end_of_backward.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

namespace intarsia {
namespace {

struct Calls {
  std::function<void()> done, failed;
};

void queue(std::shared_ptr<Calls> calls);

// A callback of a pass. LibTorch drops the callbacks of a pass that fails: that is how we notice it. It drops those of
// a nested pass when the outer one continues and is the current one again: then we can reach the outer one's callbacks.
class End {
 public:
  explicit End(std::shared_ptr<Calls> calls) : calls_(std::move(calls)) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    if (!calls_) return;
    try {
      inside_another_&& torch::autograd::get_current_graph_task_id() >= 0 ? queue(calls_) : calls_ -> failed();
    } catch (...) {
    }
  }
  void run() {
    inside_another_ = torch::autograd::get_current_node() != nullptr;
    if (!inside_another_) std::exchange(calls_, nullptr)->done();
  }

 private:
  std::shared_ptr<Calls> calls_;  // null once it has run
  bool inside_another_ = false;
};

void queue(std::shared_ptr<Calls> calls) {
  auto end = std::make_shared<End>(std::move(calls));
  torch::autograd::Engine::get_default_engine().queue_callback([end] { end->run(); });
}

}  // namespace

void at_end_of_backward(std::function<void()> done, std::function<void()> failed) {
  queue(std::make_shared<Calls>(Calls{std::move(done), std::move(failed)}));
}

}  // namespace intarsia
