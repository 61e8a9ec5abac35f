import sys
import torch, torch.utils.data as data
import torch.nn.functional as F
from parts import *

torch.manual_seed(0); torch.set_num_threads(1)
net = Net(40)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for x, y in data.DataLoader(Samples(int(sys.argv[1])), BATCH, True):
	opt.zero_grad()
	loss = F.mse_loss(net(x), y)
	loss.backward(); opt.step()
	print('loss', loss.item().hex(), flush=True)
