// What holds for every op on images: any size, type and order in memory of the image; values and gradients are those of
// the plain op.

#include "tests/images/family.h"

#include <gtest/gtest.h>

#include "intarsia/tensor/policy.h"
#include "tests/support/dealer.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia::images_family_test {
namespace {

using family::Ints;
using family::Member;

enum class Memory { kContiguous, kJumbled, kChannelsLast };

struct Image {
  Ints shape;
  at::ScalarType dtype = at::kDouble;
  Memory memory = Memory::kContiguous;

  bool differentiable() const { return !at::isIntegralType(dtype, true); }
  at::Tensor random() const {
    if (!differentiable()) return at::randint(0, 100, shape, dtype);
    auto whole = at::randn(shape, at::isComplexType(dtype) ? dtype : at::kDouble).to(dtype);
    if (memory != Memory::kChannelsLast) return whole;
    return whole.contiguous(whole.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d);
  }
  double tolerance() const {
    if (!differentiable()) return 0;
    return dtype == at::kBFloat16 ? 4e-2 : dtype == at::kHalf ? 5e-3 : dtype == at::kFloat ? 1e-5 : 1e-11;
  }
};

// Empty, or what differs, relative to the largest value.
std::string differs(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  double largest = 1;
  if (expected.numel() && tolerance > 0)
    largest = std::max(1., expected.detach().abs().max().to(at::kDouble).item<double>());
  return difference(full_tensor(actual.detach()), expected.detach(), tolerance * largest);
}

// Some plain ops lack a type, or images without a batch, or windows that stick out on both sides.
bool plain_has(const Member& m, const Image& image) {
  try {
    auto results = m.op(image.random().requires_grad_(image.differentiable()));
    if (image.differentiable()) results[0].backward(at::zeros_like(results[0]));
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

void compare(const Member& m, const Image& image, const DeviceMesh& mesh, const Placements& cut) {
  SCOPED_TRACE(m.name + c10::str(" of ", image.dtype, image.shape, " ") + str(cut) + " on " + mesh.text());
  auto whole = image.random();
  if (image.memory == Memory::kJumbled) whole = whole.transpose(0, -1).contiguous().transpose(0, -1);
  auto x = whole.clone().requires_grad_(image.differentiable());
  auto dx = image.memory == Memory::kChannelsLast ? distribute_tensor(whole, mesh, cut) : lay_out(whole, mesh, cut);
  dx.requires_grad_(image.differentiable());
  auto expected = m.op(x), actual = m.op(dx);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(differs(actual[i], expected[i], image.tolerance()), "") << "result " << i;
    EXPECT_EQ(actual[i].strides(), expected[i].strides());
    EXPECT_EQ(differs(actual[i].flatten(), expected[i].flatten(), image.tolerance()), "") << "flat result " << i;
    if (m.keeps_layout && (image.differentiable() || !m.rounds)) {
      EXPECT_EQ(str(placements_of(actual[i])), str(cut));
    }
  }
  if (!image.differentiable()) return;
  auto grad = Image{expected[0].sizes().vec(), image.dtype}.random();
  expected[0].backward(grad), actual[0].backward(lay_out(grad, mesh, placements_of(actual[0])));
  EXPECT_EQ(differs(dx.grad(), x.grad(), image.tolerance()), "") << "gradient";
  EXPECT_EQ(dx.grad().strides(), x.grad().strides()) << "gradient";
}

// One image per member, on lines and squares of ranks, cut along its dims in turn. Of the members, `least` must have
// the op on such images.
void compare_all(std::initializer_list<int64_t> worlds, int64_t least,
                 const std::function<std::optional<Image>(const Member&)>& image_for) {
  StrictScope strict;
  at::manual_seed(6);
  for_each_world(worlds, [&](int64_t n) {
    int64_t compared = 0, turn = n;
    for (auto& m : family::members()) {
      auto image = image_for(m);
      if (!image || !plain_has(m, *image)) continue;
      ++compared;
      auto first = static_cast<int64_t>(image->shape.size()) - m.dims;
      for (auto& shape : mesh_shapes(n)) {
        auto mesh = init_device_mesh(at::kCPU, shape);
        Placements cut = {Shard(first + turn++ % m.dims)};
        if (mesh.ndim() == 2) cut.push_back(Shard(first + turn++ % m.dims));
        compare(m, *image, mesh, cut);
      }
    }
    EXPECT_GE(compared, least) << "of " << family::members().size();
  });
}

Ints shaped(const Member& m, int64_t rows) {
  Ints shape(m.dims + 2, std::max(rows, m.least));
  shape[0] = 2, shape[1] = 4;
  return shape;
}

TEST(Family, OfImagesSmallerThanTheMesh) {
  for (int64_t rows : {1, 3}) {
    compare_all({2, 4, 6}, 84, [=](const Member& m) { return Image{shaped(m, rows)}; });
  }
}

TEST(Family, OfUnevenShards) {
  for (int64_t rows : {5, 7}) {
    compare_all({2, 4}, 85, [=](const Member& m) { return Image{shaped(m, rows)}; });
  }
}

TEST(Family, OfShardsThatAreNotContiguous) {
  compare_all({2, 4}, 85, [](const Member& m) { return Image{shaped(m, 6), at::kDouble, Memory::kJumbled}; });
}

TEST(Family, OfImagesWithTheirChannelsLast) {
  for (auto dtype : {at::kDouble, at::kFloat}) {
    compare_all({2, 4}, 50, [=](const Member& m) {
      return m.dims == 1 ? std::nullopt : std::optional(Image{shaped(m, 6), dtype, Memory::kChannelsLast});
    });
  }
}

TEST(Family, InTypesOf16Bits) {
  for (auto dtype : {at::kBFloat16, at::kHalf}) {
    compare_all({2, 4}, 50, [=](const Member& m) { return Image{shaped(m, 6), dtype}; });
  }
}

TEST(Family, OfComplexNumbers) {
  compare_all({2, 4}, 40, [](const Member& m) { return Image{shaped(m, 6), at::kComplexDouble}; });
}

TEST(Family, OfWholeNumbers) {
  for (auto dtype : {at::kLong, at::kByte}) {
    compare_all({2, 4}, 10, [=](const Member& m) { return Image{shaped(m, 6), dtype}; });
  }
}

TEST(Family, OfOneImageWithoutABatch) {
  compare_all({2, 4}, 50, [](const Member& m) {
    auto shape = shaped(m, 6);
    shape.erase(shape.begin());
    return Image{shape};
  });
}

}  // namespace
}  // namespace intarsia::images_family_test
