#pragma once
// More families of rules and ops, one function per file: see table.h.

#include "intarsia/rules/table.h"

namespace intarsia {

void add_margin_rules(RuleTable& table);
void add_vision_rules(RuleTable& table);
void add_embedding_bag_ops(RuleTable& table);
void add_total_norm_ops(RuleTable& table);
void add_draws(RuleTable& table);  // in random/
void add_refusals(RuleTable& table);  // which values ops refuse: to rules that are there

}  // namespace intarsia
