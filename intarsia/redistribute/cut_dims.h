#pragma once
// What ops do over a dim that is cut, where there is a choice.

#include <string>

namespace intarsia {

enum class CutDims {
  stay,    // the default: ranks exchange what they must, and results stay cut
  gather,  // as PyTorch's DTensor: the dim is gathered, results are whole along it, and no op cuts another dim in its place
};

// For the whole process.
void set_cut_dims(CutDims policy);

// On this thread while it lives.
class CutDimsScope {
 public:
  explicit CutDimsScope(CutDims policy);
  ~CutDimsScope();
  CutDimsScope(const CutDimsScope&) = delete;
  CutDimsScope& operator=(const CutDimsScope&) = delete;

 private:
  int outer_;
};
CutDims cut_dims();

// Whether an op that could run along a cut gathers instead. PyTorch's DTensor, too, exchanges the borders of images for a convolution.
bool gathers(const std::string& op);

}  // namespace intarsia
