#include "intarsia/redistribute/cut_dims.h"

#include <atomic>

namespace intarsia {
namespace {

std::atomic<CutDims> of_process_{CutDims::stay};
thread_local int of_thread_ = -1;  // a CutDims, or -1: as the process

}  // namespace

void set_cut_dims(CutDims policy) { of_process_.store(policy, std::memory_order_relaxed); }

CutDimsScope::CutDimsScope(CutDims policy) : outer_(of_thread_) { of_thread_ = static_cast<int>(policy); }
CutDimsScope::~CutDimsScope() { of_thread_ = outer_; }

CutDims cut_dims() {
  return of_thread_ < 0 ? of_process_.load(std::memory_order_relaxed) : static_cast<CutDims>(of_thread_);
}

bool gathers(const std::string& op) { return cut_dims() == CutDims::gather && op.rfind("aten::convolution", 0) != 0; }

}  // namespace intarsia
