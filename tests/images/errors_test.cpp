// Wrong arguments on cut images read as they do on plain tensors, on every rank, and nobody is left waiting.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"
#include "tests/support/dealer.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::images_errors_test {
namespace {

using Ints = std::vector<int64_t>;
using Op = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// Calls the op on zeros of the given shapes, plain and with the first one cut along its dims; compares the texts. Then
// all ranks still agree on the sum of something cut.
void same_error(const std::string& text, const std::vector<Ints>& shapes, const Op& op) {
  std::vector<at::Tensor> plain;
  for (auto& shape : shapes) plain.push_back(at::zeros(shape));
  auto expected = error_text<c10::Error>([&] { op(plain); });
  EXPECT_NE(expected, "no error") << text;
  for_each_world({2, 4}, [&](int64_t n) {
    for (auto& mesh_shape : mesh_shapes(n)) {
      auto mesh = init_device_mesh(at::kCPU, mesh_shape);
      auto ndim = static_cast<int64_t>(shapes[0].size());
      for (int64_t dim = 0; dim < ndim; ++dim) {
        SCOPED_TRACE(text + c10::str(" dim ", dim, " on ") + mesh.text());
        std::vector<at::Tensor> cut;
        for (auto& tensor : plain) {
          Placements placements(mesh.ndim(), Replicate());
          if (cut.empty()) placements[0] = Shard(dim), placements.back() = Shard(dim ? dim : ndim - 1);
          cut.push_back(distribute_tensor(tensor, mesh, placements));
        }
        EXPECT_EQ(error_text<c10::Error>([&] { op(cut); }), expected);
        auto after = distribute_tensor(at::ones({5}), mesh, Placements(mesh.ndim(), Shard(0)));
        EXPECT_EQ(full_tensor(after.sum()).item<double>(), 5);
      }
    }
  });
}

at::Tensor conv(const std::vector<at::Tensor>& t, int64_t groups = 1, bool transposed = false) {
  Ints one(t[0].dim() - 2, 1), zero(t[0].dim() - 2, 0);
  return at::convolution(t[0], t[1], t.size() > 2 ? t[2] : at::Tensor(), one, zero, one, transposed, zero, groups);
}

TEST(ConvolutionErrors, ReadAsThePlainOps) {
  auto plain = [](auto& t) { return conv(t); };
  same_error("channels", {{1, 4, 8, 8}, {4, 3, 3, 3}}, plain);
  same_error("a kernel larger than the image", {{1, 4, 8, 8}, {4, 4, 9, 9}}, plain);
  same_error("a kernel larger than the sequence", {{1, 4, 8}, {4, 4, 9}}, plain);
  same_error("groups that do not divide", {{1, 4, 8, 8}, {4, 2, 3, 3}}, [](auto& t) { return conv(t, 3); });
  same_error("groups that do not divide the outputs", {{1, 4, 8, 8}, {3, 2, 3, 3}}, [](auto& t) { return conv(t, 2); });
  same_error("no groups", {{1, 4, 8, 8}, {4, 4, 3, 3}}, [](auto& t) { return conv(t, 0); });
  same_error("a bias of another size", {{1, 4, 8, 8}, {4, 4, 3, 3}, {5}}, plain);
  same_error("channels, transposed", {{1, 4, 8, 8}, {3, 4, 3, 3}}, [](auto& t) { return conv(t, 1, true); });
  same_error("a weight of other dims", {{1, 4, 8, 8}, {4, 4, 3}}, plain);
  same_error("a kernel larger than the volume", {{1, 2, 4, 4, 4}, {2, 2, 5, 1, 1}}, plain);
  same_error("channels of a sequence", {{1, 4, 8}, {4, 3, 3}}, plain);
  same_error("channels of a volume", {{1, 4, 3, 3, 3}, {4, 3, 2, 2, 2}}, plain);
  same_error("no image", {{1, 4, 0, 8}, {4, 4, 3, 3}}, plain);
  same_error("another type", {{1, 4, 8, 8}, {4, 4, 3, 3}}, [](auto& t) { return conv({t[0], t[1].to(at::kDouble)}); });
  same_error("a kernel larger than the padded image", {{1, 4, 8, 8}, {4, 4, 11, 3}},
             [](auto& t) { return at::conv2d(t[0], t[1], {}, 1, 1); });
  same_error("a dilated kernel larger than the padded image", {{1, 4, 8, 8}, {4, 4, 3, 3}},
             [](auto& t) { return at::conv2d(t[0], t[1], {}, {1, 1}, at::IntArrayRef{0, 0}, {4, 4}); });
}

TEST(ConvolutionErrors, OfTransposedOnesReadAsThePlainOps) {
  auto groups = [](int64_t count) { return [=](auto& t) { return conv(t, count, true); }; };
  same_error("groups that do not divide", {{1, 4, 8, 8}, {4, 2, 3, 3}}, groups(3));
  same_error("channels of a sequence", {{1, 4, 8}, {3, 4, 3}}, groups(1));
  same_error("channels of a volume", {{1, 4, 3, 3, 3}, {3, 4, 2, 2, 2}}, groups(1));
  same_error("a bias of another size", {{1, 4, 8, 8}, {4, 4, 3, 3}, {5}}, groups(1));
  same_error("more cropped than there is", {{1, 4, 2, 2}, {4, 4, 2, 2}},
             [](auto& t) { return at::conv_transpose2d(t[0], t[1], {}, 1, 2); });
  same_error("no stride", {{1, 4, 8, 8}, {4, 4, 3, 3}},
             [](auto& t) { return at::conv_transpose2d(t[0], t[1], {}, 0); });
}

TEST(ConvolutionErrors, OfTheFunctionsReadAsThePlainOps) {
  same_error("conv2d of a sequence", {{4, 8}, {4, 4, 3, 3}}, [](auto& t) { return at::conv2d(t[0], t[1]); });
  same_error("conv1d of an image", {{1, 4, 8, 8}, {4, 4, 3}}, [](auto& t) { return at::conv1d(t[0], t[1]); });
  same_error("conv3d", {{1, 4, 8, 8}, {4, 4, 3}}, [](auto& t) { return at::conv3d(t[0], t[1]); });
  same_error("same padding and a stride", {{1, 4, 8, 8}, {4, 4, 3, 3}},
             [](auto& t) { return at::conv2d(t[0], t[1], {}, 2, "same"); });
  same_error("padding of a wrong name", {{1, 4, 8, 8}, {4, 4, 3, 3}},
             [](auto& t) { return at::conv2d(t[0], t[1], {}, 1, "some"); });
  same_error("a negative padding", {{1, 4, 8, 8}, {4, 4, 3, 3}},
             [](auto& t) { return at::conv2d(t[0], t[1], {}, 1, -1); });
  same_error("no stride", {{1, 4, 8, 8}, {4, 4, 3, 3}}, [](auto& t) { return at::conv2d(t[0], t[1], {}, 0); });
  same_error("an output padding that is too large", {{1, 4, 8, 8}, {4, 4, 3, 3}},
             [](auto& t) { return at::conv_transpose2d(t[0], t[1], {}, 2, 0, 2); });
}

TEST(PoolErrors, ReadAsThePlainOps) {
  const Ints image = {1, 1, 4, 4}, volume = {1, 1, 4, 4, 4};
  auto max2 = [](Ints kernel, Ints stride, Ints padding) {
    return [=](auto& t) { return std::get<0>(at::max_pool2d_with_indices(t[0], kernel, stride, padding)); };
  };
  auto max3 = [](Ints kernel, Ints stride, Ints padding) {
    return [=](auto& t) { return std::get<0>(at::max_pool3d_with_indices(t[0], kernel, stride, padding)); };
  };
  same_error("a window larger than the image", {image}, max2({5, 5}, {}, {0, 0}));
  same_error("too much padding", {image}, max2({2, 2}, {2, 2}, {2, 2}));
  same_error("too many dims", {volume}, max2({2, 2}, {}, {0, 0}));
  same_error("a window larger than the volume", {volume}, max3({5, 5, 5}, {}, {0, 0, 0}));
  same_error("too much padding of a volume", {volume}, max3({2, 2, 2}, {2, 2, 2}, {2, 2, 2}));
  same_error("no stride", {image}, [](auto& t) { return at::avg_pool2d(t[0], {2, 2}, {0, 1}); });
  const Ints sequence = {1, 1, 4};
  same_error("a window larger than the sequence", {sequence}, [](auto& t) { return at::max_pool1d(t[0], {5}); });
  same_error("too much padding of a sequence", {sequence}, [](auto& t) { return at::max_pool1d(t[0], {2}, {2}, {2}); });
  same_error("a window larger than the sequence", {sequence}, [](auto& t) { return at::avg_pool1d(t[0], {5}); });
  same_error("a window larger than the image", {image}, [](auto& t) { return at::avg_pool2d(t[0], {5, 5}); });
  same_error("a window larger than the volume", {volume}, [](auto& t) { return at::avg_pool3d(t[0], {5, 1, 1}); });
  same_error("too much padding", {image}, [](auto& t) { return at::avg_pool2d(t[0], {2, 2}, {2, 2}, {2, 2}); });
  same_error("too much padding of a volume", {volume},
             [](auto& t) { return at::avg_pool3d(t[0], {2, 2, 2}, {2, 2, 2}, {2, 2, 2}); });
  same_error("a divisor of nothing", {image},
             [](auto& t) { return at::avg_pool2d(t[0], {2, 2}, {2, 2}, {0, 0}, false, true, 0); });
  same_error("no dilation", {image}, [](auto& t) { return at::max_pool2d(t[0], {2, 2}, {2, 2}, {0, 0}, {0, 1}); });
  same_error("a dilated window larger than the image", {image},
             [](auto& t) { return at::max_pool2d(t[0], {3, 3}, {1, 1}, {0, 0}, {2, 2}); });
  same_error("three numbers for two dims", {image}, [](auto& t) { return at::max_pool2d(t[0], {2, 2, 2}); });
  same_error("a negative size", {image}, [](auto& t) { return at::adaptive_avg_pool2d(t[0], {-1, 2}); });
  same_error("one size for three dims", {volume}, [](auto& t) { return at::adaptive_avg_pool3d(t[0], {3}); });
  same_error("one size for three dims", {volume},
             [](auto& t) { return std::get<0>(at::adaptive_max_pool3d(t[0], {3})); });
  same_error("one size for two dims", {image}, [](auto& t) { return std::get<0>(at::adaptive_max_pool2d(t[0], {2})); });
  same_error("one size for two dims", {image}, [](auto& t) { return at::adaptive_avg_pool2d(t[0], {3}); });
}

TEST(ResampleErrors, ReadAsThePlainOps) {
  const Ints image = {1, 1, 4, 4};
  same_error("reflecting beyond the image", {image}, [](auto& t) { return at::reflection_pad2d(t[0], {4, 0, 0, 0}); });
  same_error("cropping all", {image}, [](auto& t) { return at::reflection_pad2d(t[0], {-2, -2, -2, -2}); });
  same_error("cropping all", {image}, [](auto& t) { return at::replication_pad2d(t[0], {-2, -2, -2, -2}); });
  same_error("cropping more than all", {image}, [](auto& t) { return at::constant_pad_nd(t[0], {0, 0, -3, -2}); });
  same_error("around twice", {image}, [](auto& t) { return at::_pad_circular(t[0], {5, 0, 0, 0}); });
  const Ints sequence = {1, 1, 4}, volume = {1, 1, 4, 4, 4};
  same_error("reflecting beyond the sequence", {sequence}, [](auto& t) { return at::reflection_pad1d(t[0], {0, 4}); });
  same_error("reflecting beyond the volume", {volume},
             [](auto& t) { return at::reflection_pad3d(t[0], {0, 0, 4, 0, 0, 0}); });
  same_error("cropping all", {sequence}, [](auto& t) { return at::replication_pad1d(t[0], {-2, -2}); });
  same_error("padding for two dims", {volume}, [](auto& t) { return at::replication_pad3d(t[0], {1, 1, 1, 1}); });
  same_error("an odd padding", {image}, [](auto& t) { return at::constant_pad_nd(t[0], {1, 1, 1}); });
  same_error("two sizes for one dim", {sequence}, [](auto& t) { return at::upsample_linear1d(t[0], {3, 3}, false); });
  same_error("a sequence for an image", {sequence},
             [](auto& t) { return at::upsample_bilinear2d(t[0], {3, 3}, false); });
  same_error("an image for a volume", {image},
             [](auto& t) { return at::upsample_trilinear3d(t[0], {3, 3, 3}, false); });
  same_error("no output", {sequence}, [](auto& t) { return at::upsample_nearest1d(t[0], {0}); });
  same_error("no output", {image}, [](auto& t) { return at::upsample_bilinear2d(t[0], {0, 3}, false); });
}

TEST(UnfoldErrors, ReadAsThePlainOps) {
  const Ints image = {1, 2, 4, 4};
  same_error("a large kernel", {image}, [](auto& t) { return at::im2col(t[0], {6, 6}, {1, 1}, {0, 0}, {1, 1}); });
  same_error("no stride", {image}, [](auto& t) { return at::im2col(t[0], {2, 2}, {1, 1}, {0, 0}, {0, 1}); });
  same_error("channels", {{1, 7, 4}}, [](auto& t) { return at::col2im(t[0], {4, 4}, {2, 2}, {1, 1}, {0, 0}, {2, 2}); });
  same_error("a kernel of one number", {image}, [](auto& t) { return at::im2col(t[0], {2}, {1, 1}, {0, 0}, {1, 1}); });
  same_error("no dilation", {image}, [](auto& t) { return at::im2col(t[0], {2, 2}, {0, 1}, {0, 0}, {1, 1}); });
  same_error("a negative padding", {image}, [](auto& t) { return at::im2col(t[0], {2, 2}, {1, 1}, {-1, 0}, {1, 1}); });
  same_error("no stride", {{1, 8, 4}},
             [](auto& t) { return at::col2im(t[0], {4, 4}, {2, 2}, {1, 1}, {0, 0}, {0, 2}); });
  same_error("no image", {{1, 8, 4}}, [](auto& t) { return at::col2im(t[0], {0, 4}, {2, 2}, {1, 1}, {0, 0}, {2, 2}); });
  same_error("columns", {{1, 8, 5}}, [](auto& t) { return at::col2im(t[0], {4, 4}, {2, 2}, {1, 1}, {0, 0}, {2, 2}); });
}

}  // namespace
}  // namespace intarsia::images_errors_test
