#include "intarsia/launch/secret.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "intarsia/launch/rendezvous.h"
#include "intarsia/launch/sockets.h"
#include "intarsia/launch/store_gateway.h"

namespace intarsia::launch_secret_test {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kWhile{20000};

TEST(Secret, Sha256GivesTheDigestsOfTheStandard) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4231, cases 1, 2, 6.
TEST(Secret, HmacGivesTheCodesOfTheStandard) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Secret, TwoAreNeverTheSame) {
  EXPECT_NE(random_bytes(32), random_bytes(32));
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abd"));
  EXPECT_FALSE(equal_in_constant_time("abc", "ab"));
}

// A store behind a front at a port of loopback, as if that were the network.
class Front : public testing::Test {
 protected:
  void SetUp() override {
    int fd = listen_at("127.0.0.1", 0);
    port = port_of(fd);
    served = serve_store("127.0.0.1", 0, kWhile);
    open_gateway(fd, served.port, "open sesame");
  }
  Meeting here() const {
    Meeting meeting;
    meeting.host = "127.0.0.1";
    meeting.port = port;
    return meeting;
  }
  uint16_t port = 0;
  ServedStore served;
};

TEST_F(Front, LetsThoseInWhoKnowTheSecret) {
  auto store = enter_store(here(), "rank 1", "open sesame", kWhile).store;
  served.store->set("said", "hello");
  EXPECT_EQ(store->get_to_str("said"), "hello");
  std::string large(3 << 20, 'x');
  store->set("large", large);
  EXPECT_EQ(store->clone()->get_to_str("large"), large);
}

TEST_F(Front, TurnsOthersAway) {
  EXPECT_EQ(enter_gateway("127.0.0.1", port, "open barley", kWhile).why_not, "has another one");
  try {
    enter_store(here(), "rank 1", "open barley", kWhile);
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("[init] rank 1 has a secret (INTARSIA_SECRET), but the store at tcp://127.0.0.1:" +
                        std::to_string(port) + " has another one."),
              std::string::npos)
        << error.what();
  }
}

TEST_F(Front, IsKnownFromAStoreThatAsksForNothing) {
  EXPECT_TRUE(is_gateway("127.0.0.1", port, kWhile));
  EXPECT_FALSE(is_gateway("127.0.0.1", served.port, milliseconds(200)));
  EXPECT_EQ(enter_gateway("127.0.0.1", served.port, "open sesame", milliseconds(200)).why_not,
            "does not ask for a secret");
}

// Who repeats what a guest said before gets another number to sign.
TEST_F(Front, DoesNotTakeAProofTwice) {
  auto say = [&](const std::string& words) {
    int fd = connect_to("127.0.0.1", port, kWhile);
    auto deadline = std::chrono::steady_clock::now() + kWhile;
    std::string hello(48, '\0'), answer(32, '\0');
    EXPECT_TRUE(receive_all(fd, hello, deadline));
    auto nonce = std::string(32, 'n');
    auto right = nonce + hmac_sha256("open sesame", "guest" + hello.substr(16) + nonce);
    send_all(fd, words.empty() ? right : words, deadline);
    bool in = receive_all(fd, answer, deadline);
    close(fd);
    return std::pair{in, right};
  };
  auto [in, said] = say("");
  EXPECT_TRUE(in);
  EXPECT_FALSE(say(said).first);
}

}  // namespace
}  // namespace intarsia::launch_secret_test
