"""intarsia explain: arguments are read as the op's schema has them."""

import unittest

from support import CLI, Ended, environment


def explain(*words):
    return Ended([CLI, "explain", *words], env=environment())


class Explain(unittest.TestCase):
    def expect(self, words, *texts):
        ended = explain(*words)
        self.assertEqual(ended.status, 0, ended)
        for text in texts:
            self.assertIn(text, ended.out)

    def test_reads_numbers_texts_dtypes_none_and_lists(self):
        mesh = ["--mesh", "2"]
        self.expect(["sum.dim_IntList", "[8, 4] S(0)", "dim=[0, 1]", "keepdim=true", *mesh], "[S(0)] -> [P(sum)]")
        self.expect(["add.Tensor", "[8] S(0)", "[8] R", "alpha=0.5", *mesh], "narrow 0 [R] -> [S(0)]")
        self.expect(["softmax.int", "[8, 12] S(0)", "dim=-1", "dtype=double", *mesh], "Result: [S(0)]")
        self.expect(["softmax.int", "[8, 12] S(0)", "dim=1", "dtype=none", *mesh], "Result: [S(0)]")
        self.expect(["einsum", "[8, 12] S(0)", "[12, 6]", "equation=ij,jk->ik", *mesh], "Result: [S(0)]")
        self.expect(["upsample_nearest2d.vec", "[4, 3, 8, 8] S(0)", "scale_factors=[2.0, 2.0]", *mesh], "[S(0)]")
        self.expect(["dropout", "[8, 12] S(0)", "p=0.5", "train=True", *mesh], "Result: [S(0)]")

    def test_reads_one_number_in_the_place_of_several(self):
        self.expect(["max_pool2d", "[4, 3, 8, 8] S(0)", "kernel_size=2", "--mesh", "2"], "Result: [S(0)]")

    def test_reads_tensors_by_name_and_of_any_dtype(self):
        words = ["layer_norm", "[8, 12] S(0)", "normalized_shape=12", "bias=[12] S(0) double", "--mesh", "2"]
        self.expect(words, "all_gather 0 48B")
        self.expect(["nll_loss", "[8, 12] S(0)", "[8] S(0) long", "--mesh", "2"], "Result: [P(sum)]")
        self.expect(["index.Tensor", "[8, 4] S(1)", "[3] long", "--mesh", "2"], "[S(1)]")

    def test_says_what_it_cannot_read(self):
        for words, text in (
            (["sum.dim_IntList", "[8, 4]", "dims=0"], 'sum.dim_IntList has no argument "dims". The schema is aten::sum.dim_IntList('),
            (["sum.dim_IntList", "[8, 4]", "dim=x"], "cannot read dim=x as int[]?. The schema is"),
            (["softmax", "[8, 4]"], "Name the overload too, as in aten::add.Tensor. It has aten::softmax.int"),
            (["mm", "[8, x]", "[8, 8]"], 'cannot read the extent "x" of "[8, x]".'),
            (["mm", "[8, 8", "[8, 8]"], 'cannot read the tensor "[8, 8".'),
            (["mm", "[8, 8]", "[8, 8]", "--mesh", "2xa"], 'cannot read the mesh "2xa".'),
            (["mm", "[8, 8]", "[8, 8]", "[8, 8]"], "3 tensors given, but aten::mm takes 2."),
        ):
            ended = explain(*words)
            self.assertEqual(ended.status, 1, ended)
            self.assertIn(text, ended.err)


if __name__ == "__main__":
    unittest.main()
