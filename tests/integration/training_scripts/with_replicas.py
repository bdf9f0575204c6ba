import argparse

import torch
from torch import distributed, nn

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int)
arguments = parser.parse_args()
distributed.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
while True:
    optimizer.zero_grad()
    net(torch.ones(arguments.bs, 1024, 256)).square().mean().backward()
    optimizer.step()
