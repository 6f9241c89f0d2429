"""Trains a small U-Net on one large image that is cut along its width over four ranks: strided, dilated and transposed
convolutions, pooling, batch norm and skip connections. The model is plain torch.nn, the optimizer plain torch.optim.

Run it by itself, and this process plays all four ranks:
    PYTHONPATH=build/python python examples/python/5_unet.py
or as four processes:
    PYTHONPATH=build/python torchrun --nproc-per-node 4 examples/python/5_unet.py
An argument is the width of the image, a multiple of 4.

It prints the loss of every step beside the loss of the same step on one rank, and what the ranks told each other in the
last step. It ends with an error if two losses differ by more than 1e-5.
"""

import contextlib
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

from intarsia import Shard, distribute_module, distribute_tensor, init_device_mesh, simulate
from intarsia.debug import CommDebugMode

STEPS, HEIGHT, CHANNELS, CLASSES = 5, 64, 8, 3


def block(*channels, **options):
    return nn.Sequential(nn.Conv2d(*channels, 3, bias=False, **options), nn.BatchNorm2d(channels[1]), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        c = CHANNELS
        self.fine = block(3, c, padding=1)
        self.down = block(c, 2 * c, stride=2, padding=1)
        self.bottom = block(2 * c, 4 * c, dilation=2, padding=2)
        self.up1 = nn.ConvTranspose2d(4 * c, 2 * c, 2, stride=2)
        self.join1 = block(4 * c, 2 * c, padding=1)
        self.up2 = nn.ConvTranspose2d(2 * c, c, 4, stride=2, padding=1)
        self.join2 = block(2 * c, c, padding=1)
        self.last = nn.Conv2d(c, CLASSES, 1)

    def forward(self, image):
        full = self.fine(image)
        half = self.down(full)
        quarter = self.bottom(F.max_pool2d(half, 2))
        x = self.join1(torch.cat([self.up1(quarter), half], 1))
        return self.last(self.join2(torch.cat([self.up2(x), full], 1)))


def train(model, image, labels, comms):
    """Ordinary PyTorch code: it does not know whether its tensors are distributed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        with comms:  # keeps the last step only
            optimizer.zero_grad()
            loss = F.cross_entropy(model(image), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def first_model():
    torch.manual_seed(1)
    return UNet()


def main():
    alone = "RANK" not in os.environ
    with simulate(4) if alone else contextlib.nullcontext():
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("width",))

        torch.manual_seed(0)
        width = int(sys.argv[1]) if len(sys.argv) > 1 else 244  # over 4 ranks: 61 columns each, 31, 31, 31, 29 at half
        image, labels = torch.randn(1, 3, HEIGHT, width), torch.randint(CLASSES, (1, HEIGHT, width))
        cut_image = distribute_tensor(image, mesh, [Shard(3)])
        cut_labels = distribute_tensor(labels, mesh, [Shard(2)])

        model = distribute_module(first_model(), mesh)  # every rank holds all parameters
        comms = CommDebugMode()
        losses = train(model, cut_image, cut_labels, comms)
        expected = train(first_model(), image, labels, contextlib.nullcontext())

        say = print if alone or mesh.get_rank() == 0 else lambda *_, **__: None  # one of the ranks speaks for all
        say("step  loss on the cut image  on one rank")
        same = True
        for step, (loss, wanted) in enumerate(zip(losses, expected)):
            agree = abs(loss - wanted) <= 1e-5
            same = same and agree
            say(f"{step:4d}  {loss:21.7f}  {wanted:11.7f}{'' if agree else '  DIFFERS'}")
        say(f"\nWhat a rank sent or received in the last step:\n{comms.table()}")
        say("every loss is that of one rank to 1e-5" if same else "A LOSS DIFFERS")
        if not alone:
            torch.distributed.destroy_process_group()
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
