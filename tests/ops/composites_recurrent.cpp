// Recurrent layers and cells, of sequences of one length and packed.

#include <ATen/ATen.h>

#include "tests/ops/composites.h"

namespace intarsia {

void add_recurrent_composites(std::vector<Sample>& list) {
  AddCalls each{list};
  auto weights = [](int64_t gates) {
    return c10::List<at::Tensor>({unit({2 * gates, 4}), unit({2 * gates, 2}), unit({2 * gates}), unit({2 * gates})});
  };
  auto state = [] { return x({1, 5, 2}); };
  c10::List<at::Tensor> states({state(), state()});
  each({"rnn_tanh.input", "rnn_relu.input"}, {x({3, 5, 4}), state(), weights(1), true, 1, 0.0, false, false, false});
  each({"gru.input"}, {x({3, 5, 4}), state(), weights(3), true, 1, 0.0, false, false, false});
  each({"lstm.input"}, {x({3, 5, 4}), states, weights(4), true, 1, 0.0, false, false, false});
  c10::List<at::Tensor> cell({x({5, 2}), x({5, 2})});
  each({"rnn_tanh_cell", "rnn_relu_cell"}, {x({5, 4}), x({5, 2}), unit({2, 4}), unit({2, 2}), unit({2}), unit({2})});
  each({"gru_cell"}, {x({5, 4}), x({5, 2}), unit({6, 4}), unit({6, 2}), unit({6}), unit({6})});
  each({"lstm_cell"}, {x({5, 4}), cell, unit({8, 4}), unit({8, 2}), unit({8}), unit({8})});
}

}  // namespace intarsia
