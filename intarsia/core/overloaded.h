#pragma once
// std::visit over placements with one lambda per alternative; a missing alternative does not compile.

namespace intarsia {

template <class... Fs>
struct overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
overloaded(Fs...) -> overloaded<Fs...>;

}  // namespace intarsia
