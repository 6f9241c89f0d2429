#pragma once
// Process groups over gloo, the CPU backend inside LibTorch.

#include <chrono>
#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace intarsia {

// Makes process groups that share one network device and the thread that serves it.
class GlooMaker {
 public:
  // `interface` is the name of a network interface (eth0) or an address of this host; empty: the address its hostname
  // resolves to.
  GlooMaker(std::string interface, std::chrono::milliseconds timeout);
  ~GlooMaker();

  // Connects `size` ranks that find each other in `store`. All of them must call it.
  c10::intrusive_ptr<c10d::Backend> make(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) const;

 private:
  struct Device;
  std::unique_ptr<Device> device_;
  std::chrono::milliseconds timeout_;
};

}  // namespace intarsia
