#pragma once
// The rules of all ops, by name. In-place and out= variants use the rule of the op they are variants of.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/rules/rule.h"

namespace intarsia {

// An op written in terms of other ops on distributed tensors. It runs below autograd, before any rule, and puts the
// results on the stack in place of the arguments; or it returns false and leaves the stack alone. Which of the two may
// depend on the forms and layouts of the tensors and on whole-number arguments, not on values: the answer is kept.
using Decomposition = std::function<bool(std::vector<c10::IValue>& stack)>;

class RuleTable {
 public:
  // "aten::add.Tensor", or "aten::mm" for an overload without a name.
  Rule& operator[](const std::string& op) { return rules_[op]; }
  void decompose(const std::string& op, Decomposition body) { decompositions_[op] = std::move(body); }

  // The rule for an op: its own, or that of the functional op it is an in-place or out= variant of.
  // Null if there is none.
  const Rule* find(const c10::OperatorName& op) const;
  const Decomposition* find_decomposition(const c10::OperatorName& op) const;
  const std::map<std::string, Rule>& rules() const { return rules_; }
  const std::map<std::string, Decomposition>& decompositions() const { return decompositions_; }

 private:
  std::map<std::string, Rule> rules_;
  std::map<std::string, Decomposition> decompositions_;
};

// All rules; made on first use. A rule of one's own is added here before the op is first called; for an op of ATen, before
// the first distributed tensor is made.
RuleTable& rule_table();

// The op whose rule serves one element of the lists of a foreach op: aten::add.Tensor for aten::_foreach_add.List.
// Empty if `op` is none, or if no op of single tensors is like it.
std::string foreach_base_of(const c10::OperatorName& op);

// The op whose rule serves `op`: add_.Tensor and add.out are served by add.Tensor. Empty if `op` is no variant.
std::string base_op_of(const c10::OperatorName& op);

// The families, one function per file.
void add_pointwise_rules(RuleTable& table);
void add_matmul_rules(RuleTable& table);
void add_reduction_rules(RuleTable& table);
void add_view_rules(RuleTable& table);
void add_factory_rules(RuleTable& table);
void add_loss_rules(RuleTable& table);
void add_whole_rules(RuleTable& table);
void add_norm_rules(RuleTable& table);
void add_embedding_rules(RuleTable& table);
void add_attention_rules(RuleTable& table);

// Ops written in terms of others that look at layouts: intarsia/ops, one function per file.
void add_softmax_ops(RuleTable& table);
void add_norm_ops(RuleTable& table);
void add_statistics_ops(RuleTable& table);
void add_loss_ops(RuleTable& table);
void add_matmul_ops(RuleTable& table);
// In conv/, which lies above and exchanges rows.
void add_convolution_rules(RuleTable& table);
void add_pool_rules(RuleTable& table);
void add_adaptive_max_pool_rules(RuleTable& table);
void add_unfold_rules(RuleTable& table);
void add_sample_rules(RuleTable& table);
void add_pad_rules(RuleTable& table);
void add_pixel_rules(RuleTable& table);
void add_resample_rules(RuleTable& table);
void add_special_rules(RuleTable& table);
void add_structure_rules(RuleTable& table);
void add_indexing_rules(RuleTable& table);
void add_order_rules(RuleTable& table);
void add_copy_rules(RuleTable& table);  // view_copy and the like, from the views that they copy: comes last
void add_shapes(RuleTable& table);      // to rules of ops that cannot tell them: after all others

// Ops written in terms of others and of collectives. They know distributed tensors, so they live above: in ops/.
void add_structure_ops(RuleTable& table);
void add_circular_pad(RuleTable& table);
void add_order_ops(RuleTable& table);
void add_diagonal_ops(RuleTable& table);
void add_list_ops(RuleTable& table);

}  // namespace intarsia
