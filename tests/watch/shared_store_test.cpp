#include <gtest/gtest.h>

#include <future>

#include <c10/util/Exception.h>

#include "intarsia/launch/rendezvous.h"
#include "intarsia/watch/shared_store.h"
#include "tests/support/error_text.h"

namespace intarsia::watch_shared_store_test {
namespace {

using std::chrono::milliseconds;

c10::intrusive_ptr<c10d::Store> shared_store(milliseconds timeout) {
  auto store = c10::make_intrusive<SharedStore>(serve_store("127.0.0.1", 0, timeout).store);
  store->setTimeout(timeout);
  return store;
}

TEST(SharedStores, AreNotHeldByAThreadThatWaits) {
  auto store = shared_store(milliseconds(20000));
  auto got = std::async(std::launch::async, [&] { return store->get_to_str("late"); });
  auto all = std::async(std::launch::async, [&] { return store->multiGet({"late", "later"}).size(); });
  store->set("late", std::string("here"));
  EXPECT_EQ(got.get(), "here");
  store->set("later", std::string("here"));
  EXPECT_EQ(all.get(), 2);
}

TEST(SharedStores, SayForWhatTheyWaitedInVain) {
  auto store = shared_store(milliseconds(100));
  EXPECT_EQ(error_text<c10::DistStoreError>([&] { store->get("never"); }), "waited 0.1 s in the store for never");
}

}  // namespace
}  // namespace intarsia::watch_shared_store_test
