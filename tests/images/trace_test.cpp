// What the family exchanges: exactly the rows under the windows of a rank's outputs that it does not hold, once per cut
// dim.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/ops/images/rows.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/policy.h"
#include "tests/support/world.h"

namespace intarsia::images_trace_test {
namespace {

namespace F = torch::nn::functional;
using Ints = std::vector<int64_t>;
using Op = std::function<at::Tensor(const at::Tensor&)>;

// Ops that choose among inputs name one that reads all of those, from which is told what they need.
struct Case {
  const char* name;
  Ints image;
  Op op, reads;
};

at::Tensor weight_like(const at::Tensor& x, Ints shape) {
  auto weight = at::ones(shape, x.options().dtype(at::kFloat).device(at::kCPU));
  return is_dtensor(x) ? distribute_tensor(weight, mesh_of(x), Placements(mesh_of(x).ndim(), Replicate()), std::nullopt)
                       : weight;
}

Op conv(int64_t kernel, int64_t stride, int64_t padding, int64_t dilation = 1) {
  return [=](const at::Tensor& x) {
    auto n = x.dim() - 2;
    Ints shape(x.dim(), kernel);
    shape[0] = shape[1] = x.size(1);
    return at::convolution(x, weight_like(x, shape), {}, Ints(n, stride), Ints(n, padding), Ints(n, dilation), false,
                           Ints(n, 0), 1);
  };
}

Op depthwise(int64_t kernel, int64_t stride, int64_t padding) {
  return [=](const at::Tensor& x) {
    return at::conv2d(x, weight_like(x, {x.size(1), 1, kernel, kernel}), {}, stride, padding, 1, x.size(1));
  };
}

Op transposed(int64_t kernel, int64_t stride, int64_t padding, int64_t more, int64_t dilation = 1) {
  return [=](const at::Tensor& x) {
    auto n = x.dim() - 2;
    Ints shape(x.dim(), kernel);
    shape[0] = shape[1] = x.size(1);
    return at::convolution(x, weight_like(x, shape), {}, Ints(n, stride), Ints(n, padding), Ints(n, dilation), true,
                           Ints(n, more), 1);
  };
}

template <class Pool>
Op values(Pool pool) {
  return [=](const at::Tensor& x) { return std::get<0>(pool(x)); };
}

std::vector<Case> cases() {
  auto of = [](const char* name, Ints image, Op op) { return Case{name, std::move(image), op, op}; };
  std::vector<Case> all = {
      of("conv1d", {17}, conv(3, 1, 1)),
      of("conv2d, strided", {5, 18}, conv(3, 2, 1)),
      of("conv2d, dilated", {9, 19}, conv(3, 1, 2, 2)),
      of("conv2d, valid", {5, 19}, conv(4, 1, 0)),
      of("conv2d, wider than a shard", {13, 13}, conv(7, 1, 3)),
      of("conv3d", {3, 4, 14}, conv(2, 1, 1)),
      of("conv_transpose1d", {11}, transposed(4, 2, 1, 0)),
      of("conv_transpose2d", {4, 11}, transposed(3, 2, 1, 1)),
      of("conv_transpose2d, overlapping", {4, 11}, transposed(3, 1, 0, 0, 2)),
      of("conv_transpose3d", {2, 3, 9}, transposed(3, 2, 0, 0)),
      of("avg_pool1d", {17}, [](auto& x) { return at::avg_pool1d(x, {3}, {2}, {1}); }),
      of("avg_pool2d", {5, 18}, [](auto& x) { return at::avg_pool2d(x, {3, 3}, {1, 2}, {1, 1}, true); }),
      of("avg_pool3d", {3, 4, 14}, [](auto& x) { return at::avg_pool3d(x, {2, 2, 3}, {1, 1, 2}); }),
      of("lp_pool2d", {5, 18},
         [](auto& x) { return F::lp_pool2d(x, F::LPPool2dFuncOptions(2, {3, 3}).stride({1, 2})); }),
      of("adaptive_avg_pool1d", {18}, [](auto& x) { return at::adaptive_avg_pool1d(x, {7}); }),
      of("adaptive_avg_pool2d", {4, 18}, [](auto& x) { return at::adaptive_avg_pool2d(x, {2, 7}); }),
      of("adaptive_avg_pool3d", {3, 4, 14}, [](auto& x) { return at::adaptive_avg_pool3d(x, {2, 3, 9}); }),
      of("reflection_pad1d", {14}, [](auto& x) { return at::reflection_pad1d(x, {3, 5}); }),
      of("reflection_pad2d", {5, 14}, [](auto& x) { return at::reflection_pad2d(x, {2, 4, 1, 0}); }),
      of("reflection_pad3d", {3, 4, 11}, [](auto& x) { return at::reflection_pad3d(x, {2, 1, 0, 1, 1, 1}); }),
      of("replication_pad1d", {14}, [](auto& x) { return at::replication_pad1d(x, {3, 5}); }),
      of("replication_pad2d", {5, 14}, [](auto& x) { return at::replication_pad2d(x, {2, 4, 1, 0}); }),
      of("replication_pad3d", {3, 4, 11}, [](auto& x) { return at::replication_pad3d(x, {2, 1, 0, 1, 1, 1}); }),
      of("nearest1d", {13}, [](auto& x) { return at::upsample_nearest1d(x, {21}); }),
      of("nearest2d", {5, 13}, [](auto& x) { return at::upsample_nearest2d(x, {7, 21}); }),
      of("nearest3d", {3, 4, 13}, [](auto& x) { return at::upsample_nearest3d(x, {3, 5, 9}); }),
      of("exact1d", {13}, [](auto& x) { return at::_upsample_nearest_exact1d(x, {21}); }),
      of("exact3d", {3, 4, 13}, [](auto& x) { return at::_upsample_nearest_exact3d(x, {3, 5, 9}); }),
      of("exact2d", {5, 13}, [](auto& x) { return at::_upsample_nearest_exact2d(x, {7, 9}); }),
      of("conv2d, depthwise", {5, 18}, depthwise(3, 1, 1)),
      of("linear1d, aligned", {13}, [](auto& x) { return at::upsample_linear1d(x, {20}, true); }),
      of("bilinear2d, not aligned", {5, 13}, [](auto& x) { return at::upsample_bilinear2d(x, {8, 20}, false); }),
      of("bicubic2d, aligned", {5, 13}, [](auto& x) { return at::upsample_bicubic2d(x, {8, 20}, true); }),
      of("bicubic2d_aa", {5, 19},
         [](auto& x) { return at::_upsample_bicubic2d_aa(x, {4, 10}, false); }),  // no weight is zero
      of("linear1d", {13}, [](auto& x) { return at::upsample_linear1d(x, {26}, false); }),
      of("bilinear2d", {5, 13},
         [](auto& x) { return at::upsample_bilinear2d(x, {8, 20}, true); }),  // no position is whole
      of("bicubic2d", {5, 13}, [](auto& x) { return at::upsample_bicubic2d(x, {7, 21}, false); }),
      of("trilinear3d", {3, 4, 13}, [](auto& x) { return at::upsample_trilinear3d(x, {3, 5, 21}, false); }),
      of("bilinear2d_aa", {5, 19}, [](auto& x) { return at::_upsample_bilinear2d_aa(x, {4, 9}, false); }),
  };
  all.push_back({"max_pool1d",
                 {17},
                 [](auto& x) { return at::max_pool1d(x, {3}, {2}, {1}); },
                 [](auto& x) { return at::avg_pool1d(x, {3}, {2}, {1}); }});
  all.push_back({"max_pool2d",
                 {5, 18},
                 [](auto& x) { return at::max_pool2d(x, {3, 3}, {1, 2}, {1, 1}, {1, 1}, true); },
                 [](auto& x) { return at::avg_pool2d(x, {3, 3}, {1, 2}, {1, 1}, true); }});
  all.push_back({"max_pool3d",
                 {3, 4, 14},
                 [](auto& x) { return at::max_pool3d(x, {2, 2, 3}, {1, 1, 2}); },
                 [](auto& x) { return at::avg_pool3d(x, {2, 2, 3}, {1, 1, 2}); }});
  all.push_back(
      {"adaptive_max_pool1d", {18}, values([](auto& x) { return at::adaptive_max_pool1d(x, {7}); }), [](auto& x) {
         return at::adaptive_avg_pool1d(x, {7});
       }});
  all.push_back(
      {"adaptive_max_pool2d", {4, 18}, values([](auto& x) { return at::adaptive_max_pool2d(x, {2, 7}); }), [](auto& x) {
         return at::adaptive_avg_pool2d(x, {2, 7});
       }});
  all.push_back({"adaptive_max_pool3d",
                 {3, 4, 14},
                 values([](auto& x) { return at::adaptive_max_pool3d(x, {2, 3, 9}); }),
                 [](auto& x) { return at::adaptive_avg_pool3d(x, {2, 3, 9}); }});
  return all;
}

// The rows, from the first to the last, that a run of outputs depends on.
Interval rows_read(const Op& op, const at::Tensor& image, int64_t dim, Interval outputs) {
  if (outputs.size() == 0) return {0, 0};
  auto x = image.clone().requires_grad_();
  op(x).narrow(dim, outputs.begin, outputs.size()).square().sum().backward();
  Ints others;
  for (int64_t d = 0; d < image.dim(); ++d) {
    if (d != dim) others.push_back(d);
  }
  auto read = at::nonzero(x.grad().abs().sum(others)).flatten();
  return read.numel() ? Interval{read[0].item<int64_t>(), read[-1].item<int64_t>() + 1} : Interval{0, 0};
}

// The trace of one exchange along "w" of the rows that others need or hold, and of no others: what the busiest of the
// hosted ranks sends or receives. Each process sees its own, so also that the first and the last rank have nothing to
// tell each other.
std::string least(const Op& reads, const at::Tensor& image, int64_t dim, const DeviceMesh& mesh) {
  auto size = image.size(dim), outputs = reads(image).size(dim), ranks = mesh.size(0);
  std::vector<int64_t> sent(ranks, 0), received(ranks, 0);
  for (int64_t needer = 0; needer < ranks; ++needer) {
    auto needed = rows_read(reads, image, dim, chunk_of(outputs, ranks, needer));
    for (int64_t holder = 0; holder < ranks; ++holder) {
      auto rows = holder == needer ? 0 : overlap(chunk_of(size, ranks, holder), needed).size();
      sent[holder] += rows, received[needer] += rows;
    }
  }
  if (std::all_of(sent.begin(), sent.end(), [](auto rows) { return rows == 0; })) return "";
  int64_t most = 0;
  for (auto& slot : mesh.slots()) most = std::max({most, sent[slot.coordinate[0]], received[slot.coordinate[0]]});
  return c10::str("halo w ", most * image.numel() / size * static_cast<int64_t>(image.element_size()), "B\n");
}

at::Tensor image_of(const Case& c) {
  Ints shape = c.image;
  shape.insert(shape.begin(), {1, 2});
  at::manual_seed(2);
  return at::rand(shape) + 1;
}

TEST(Trace, OfTheFamilyHasTheRowsThatMustTravelAndNoOthers) {
  StrictScope strict;
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n}, {"w"});
    int64_t travelled = 0;
    for (auto& c : cases()) {
      auto image = image_of(c);
      for (auto dim : {int64_t{2}, image.dim() - 1}) {
        SCOPED_TRACE(c10::str(c.name, " ", image.sizes(), " dim ", dim, " over ", n));
        auto halo = least(c.reads, image, dim, mesh);
        travelled += !halo.empty();
        auto x = distribute_tensor(image, mesh, {Shard(dim)}).requires_grad_();
        CommDebugMode comms;
        auto out = c.op(x);
        EXPECT_EQ(comms.text(), halo);
        EXPECT_EQ(str(placements_of(out)), str(placements_of(x)));
        out.backward(out.detach());
        EXPECT_EQ(comms.text(), halo + halo) << "and back";
      }
    }
    EXPECT_GT(travelled, 50);  // not a table of ops that need nothing
  });
}

TEST(Trace, OfTheFamilyHasOneExchangePerCutDim) {
  StrictScope strict;
  for_each_world({4}, [](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"h", "w"});
    for (auto& c : cases()) {
      if (c.image.size() == 1) continue;
      auto image = image_of(c);
      SCOPED_TRACE(c10::str(c.name, " ", image.sizes()));
      auto x = distribute_tensor(image, mesh, {Shard(2), Shard(image.dim() - 1)});
      CommDebugMode comms;
      auto out = c.op(x);
      EXPECT_EQ(str(placements_of(out)), str(placements_of(x)));
      auto text = comms.text();
      EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 2) << text;
      EXPECT_EQ(text.find("halo h"), text.rfind("halo h"));
      EXPECT_EQ(text.find("halo w"), text.rfind("halo w"));
    }
  });
}

// Rows move from one rank's share to another's.
TEST(Trace, OfPaddingWithAConstantHasTheRowsThatChangeHands) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n}, {"w"});
    auto image = at::ones({1, 2, 3, 14});
    for (Ints pads : {Ints{3, 0}, Ints{1, 6}, Ints{-2, 3}, Ints{0, -7}}) {
      SCOPED_TRACE(c10::str("pads ", pads, " over ", n));
      auto pad = [&](const at::Tensor& x) { return at::constant_pad_nd(x, pads, 0); };
      auto crop = [&](const at::Tensor& x) { return at::constant_pad_nd(x, {-pads[0], -pads[1]}, 0); };
      auto halo = least(pad, image, 3, mesh);
      auto x = distribute_tensor(image, mesh, {Shard(3)}).requires_grad_();
      CommDebugMode comms;
      auto out = pad(x);
      EXPECT_EQ(comms.text(), halo);
      out.backward(out.detach());
      EXPECT_EQ(comms.text(), halo + least(crop, at::ones_like(pad(image)), 3, mesh));
    }
  });
}

// Around the edge: the only padding that the first and the last rank have to tell each other about.
TEST(Trace, OfCircularPaddingHasTheRowsThatChangeHands) {
  for_each_world({4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n}, {"w"});
    auto x = distribute_tensor(at::ones({1, 1, 8}), mesh, {Shard(2)}).requires_grad_();
    CommDebugMode comms;
    auto out =
        at::_pad_circular(x, {1, 1});  // of 10 rows the ranks hold 3, 3, 3 and 1, which are 7 0 1 | 2 3 4 | 5 6 7 | 0
    EXPECT_EQ(str(placements_of(out)), "[S(2)]");
    ASSERT_EQ(comms.events().size(), 1u) << comms.text();
    out.backward(out.detach());
    EXPECT_EQ(comms.events().size(), 2u) << comms.text();
    int64_t most = 0;
    for (auto& slot : mesh.slots())
      most = std::max(most, Ints{4, 4, 8, 12}[slot.coordinate[0]]);  // of floats: the last sends three rows
    for (auto& event : comms.events()) EXPECT_LE(std::max(event.sent, event.received), most) << comms.text();
  });
}

TEST(Trace, OfUnfoldingHasTheRowsUnderTheWindows) {
  for_each_world({4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n}, {"w"});
    for (int64_t dim : {2, 3}) {
      auto x = distribute_tensor(at::ones({1, 2, 8, 8}), mesh, {Shard(dim)}).requires_grad_();
      int64_t sides = 0;
      for (auto& slot : mesh.slots())
        sides = std::max<int64_t>(sides, slot.coordinate[0] > 0 && slot.coordinate[0] < n - 1 ? 2 : 1);
      CommDebugMode comms;
      auto columns = at::im2col(x, {3, 3}, {1, 1}, {1, 1}, {1, 1});
      auto halo = c10::str("halo w ", sides * 64, "B\n");  // one row of 2x8 floats on either side
      EXPECT_EQ(comms.text(), halo);
      columns.backward(columns.detach());
      EXPECT_EQ(str(placements_of(x.grad())), str(placements_of(x)));
      EXPECT_EQ(comms.text(), halo + halo) << "sums go back, not columns";
    }
  });
}

}  // namespace
}  // namespace intarsia::images_trace_test
