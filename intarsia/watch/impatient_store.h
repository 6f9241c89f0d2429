#pragma once
// A store that does not make its callers wait for an answer that may never come.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {

// Where the link to the server of a store is cut, c10d waits for its answer for a quarter of an hour or for ever. Here a call that is
// not answered in time is an error, and from then on every call is, at once.
class ImpatientStore final : public c10d::Store {
 public:
  // A thread of ours waits in `store`; nobody else may.
  ImpatientStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds patience);
  ~ImpatientStore() override;

  c10::intrusive_ptr<c10d::Store> clone() override;
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

 private:
  using Question = std::function<void(c10d::Store&)>;
  struct Asker;
  void ask(const Question& question);
  template <class Answer, class Call>
  Answer answer_of(Call call);

  std::shared_ptr<Asker> asker_;  // shared with its thread, which may hang: nobody joins it
  std::chrono::milliseconds patience_;
};

}  // namespace intarsia
