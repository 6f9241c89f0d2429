#pragma once
// Which value of a parameter an op sees, the shards or the whole: a table of ten rows.

#include <c10/util/ArrayRef.h>

namespace intarsia {

// Note [Reads are of the whole]
// An op cannot know whether it runs in the forward of a torch::nn module or in an optimizer. So an op that only reads
// parameters sees the whole, with and without NoGradGuard, and its result suits both: beside activations it is plain,
// and the key marks it (HandleKind::computed), so that beside a gradient it is taken as a value that all ranks have:
// grad.add(wd * p). If it is written to, it becomes distributed in place: (wd * p).add_(grad). Uses that show which
// value they need come first: see param_use_rows.

// What is known about the use of a parameter by an op, before the op runs.
struct ParamUse {
  bool writes = false;         // the op writes to one of its parameters
  bool meets_plain = false;    // a tensor that is not distributed is among the arguments
  bool in_forward = false;     // of the parameter's module, if that has hooks
  bool in_formula = false;     // of backward
  bool is_recorded = false;    // by autograd: a parameter itself is among the arguments, and GradMode is on
  bool meets_shards = false;   // distributed tensors are among the arguments, one on the mesh of the shards
  bool meets_dtensor = false;  // distributed tensors are among the arguments
  bool meets_whole = false;    // an unsharded parameter, or what was computed from one
  bool keeps_shards = false;   // the op creates a tensor like its argument, or maps a list: zeros_like, clone,
                               // _foreach_norm; or it casts or moves a handle: state_dict()["w"].cpu()
};

enum class ParamValue { shards, whole };

struct ParamUseRow {
  const char* when;
  bool ParamUse::* condition;  // null: always
  ParamValue sees;
};

// The first row whose condition holds decides.
c10::ArrayRef<ParamUseRow> param_use_rows();
const ParamUseRow& row_of(const ParamUse& use);

}  // namespace intarsia
