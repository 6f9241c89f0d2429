#pragma once
// Base class of stores that forward every call to another store; a subclass decides how.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {

class ForwardingStore : public c10d::Store {
 public:
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& wanted) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override;

 protected:
  // Runs the call on the other store, maybe on another thread. The call holds what it needs, even if no thread waits
  // for it any more.
  using Call = std::function<void(c10d::Store&)>;
  virtual void forward(const Call& call) const = 0;

  template <class Ask>
  auto answer_of(Ask ask) const {
    using Answer = decltype(ask(std::declval<c10d::Store&>()));
    auto answer = std::make_shared<Answer>();
    forward([answer, ask](c10d::Store& store) { *answer = ask(store); });
    return std::move(*answer);
  }
};

}  // namespace intarsia
