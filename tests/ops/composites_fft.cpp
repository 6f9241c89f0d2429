// torch::fft.

#include <ATen/ATen.h>

#include "tests/ops/composites.h"

namespace intarsia {

void add_fft_composites(std::vector<Sample>& list) {
  AddCalls each{list};
  using Ints = std::vector<int64_t>;
  const c10::IValue none;
  auto turning = at::complex(x({5, 4, 3}), x({5, 4, 3}));
  for (int64_t dim : {0, 1, 2}) {
    each({"fft_fft", "fft_ifft", "fft_rfft", "fft_ihfft"}, {x({5, 4, 3}), none, dim, none});
    each({"fft_fft", "fft_ifft", "fft_irfft", "fft_hfft"}, {turning, 6, dim, "ortho"});
    each({"fft_fftshift", "fft_ifftshift"}, {x({5, 4, 3}), Ints{dim}});
  }
  for (auto& dims : {Ints{0, 1}, Ints{1, 2}}) {
    each({"fft_fft2", "fft_ifft2", "fft_rfft2", "fft_ihfft2"}, {x({5, 4, 3}), none, dims, none});
    each({"fft_irfft2", "fft_hfft2"}, {turning, none, dims, "forward"});
    each({"fft_fftn", "fft_ifftn", "fft_rfftn", "fft_ihfftn"}, {x({5, 4, 3}), none, dims, none});
    each({"fft_irfftn", "fft_hfftn"}, {turning, none, dims, none});
  }
  each({"fft_fftshift", "fft_ifftshift"}, {x({5, 4, 3}), none});
}

void add_special_composites(std::vector<Sample>& list) {
  AddCalls each{list};
  const c10::IValue none;
  each({"special_digamma", "special_psi", "special_gammaln", "special_log1p", "special_i0", "special_exp2"},
       {pos({5, 3})});
  each({"special_erf", "special_erfc", "special_expit", "special_expm1", "special_sinc", "special_ndtr"}, {x({5, 3})});
  each({"special_erfinv"}, {unit({5, 3})});
  each({"special_gammainc", "special_gammaincc"}, {pos({5, 3}), pos({5, 3})});
  each.list[list.size() - 1].gradient = each.list[list.size() - 2].gradient =
      false;  // LibTorch has none for the first input
  each({"special_multigammaln"}, {pos({5, 3}) + 1, 2});
  each({"special_polygamma"}, {2, pos({5, 3})});
  each({"special_round"}, {x({5, 3}), 1});
  each({"special_xlogy"}, {x({5, 3}), pos({5, 3})});
  each({"special_xlogy.other_scalar"}, {x({5, 3}), 1.5});
  each({"special_xlogy.self_scalar"}, {1.5, pos({5, 3})});
  each({"special_logit"}, {unit({5, 3}).abs() + 0.01, 1e-3});
}

}  // namespace intarsia
