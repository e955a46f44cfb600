#!/usr/bin/python3
import sys, numpy, torch, sheaf_trainer

table = torch.from_numpy(numpy.loadtxt(sys.argv[1], delimiter=",", skiprows=1, dtype=numpy.float32))
x, y = table[:, :64] / 16, table[:, 64].long()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

with sheaf_trainer.Round(model, examples=len(x)) as job:
    sgd = torch.optim.SGD(model.parameters(), lr=job.learning_rate, momentum=job.momentum)
    for batch in job.batches():
        sgd.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        sgd.step()
        job.report(loss.item())
