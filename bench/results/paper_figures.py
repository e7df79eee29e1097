"""What DeepReduce's paper reports (Xu et al. 2021, NeurIPS), for paper.py: tables as printed, figures as read off."""

# Fig. 8, one layer's gradient of ResNet-20, d = 36,864, Top-1 %: % of dense of values, of indices, in all; encode, decode ms; device.
FIG_8 = {
    "Top-r": (1.00, 1.00, 2.00, None, None, ""),
    "Huffman (indices)": (1.00, 0.62, 1.62, 116.5, 134.5, "CPU"),
    "RLE (indices)": (1.00, 0.59, 1.59, 350.0, 6.92, "CPU"),
    "BF-P2 (indices)": (1.00, 0.45, 1.45, 3.97, 2.38, "GPU"),
    "Deflate (values)": (0.90, 1.00, 1.90, 1.09, 3.24, "CPU"),
    "QSGD (values)": (0.25, 1.00, 1.25, 0.89, 0.70, "GPU"),
    "Fit-Poly (values)": (0.17, 1.00, 1.17, 2.32, 1.71, "GPU"),
    "Fit-DExp (values)": (0.02, 1.00, 1.02, 10.94, 2.96, "GPU"),
    "BF-P2 + Fit-DExp": (0.02, 0.73, 0.75, 15.43, 5.24, "GPU"),
    "BF-P2 + QSGD": (0.25, 0.45, 0.70, 4.98, 2.87, "GPU"),
    "SKCompress": (0.04, 0.30, 0.34, 709.0, 2277.0, "CPU"),
}
# Fig. 15, ResNet-20 on CIFAR-10: volume, accuracy of Top-1 %, of Random-1 %, by policy and rate of false positives.
POLICIES = {
    ("p0", "0.02"): (0.03284, 0.9055, 0.8896), ("p1", "0.02"): (0.01271, 0.8806, 0.8813), ("p2", "0.02"): (0.01271, 0.8929, 0.8814),
    ("p0", "0.004"): (0.01791, 0.9039, 0.8856), ("p1", "0.004"): (0.01377, 0.8986, 0.8793), ("p2", "0.004"): (0.01377, 0.9065, 0.8841),
    ("p0", "0.001"): (0.01584, 0.9060, 0.8850), ("p1", "0.001"): (0.01469, 0.9043, 0.8853), ("p2", "0.001"): (0.01469, 0.9055, 0.8875),
}
# The same at a rate of 0.001 by names of bench/train, of Top-1 %: volume, accuracy; and what Random-1 % has with exact indices.
FIG_15 = {"dense": (1.0, 0.9109), "top1": (0.0200, 0.9012), "p0": POLICIES["p0", "0.001"][:2], "p2": POLICIES["p2", "0.001"][:2]}
RANDOM = 0.8826
# Fig. 16 (ResNet-50, ImageNet, Top-1 %).
FIG_16 = {"dense": (1.0, 0.7378), "top1": (0.0200, 0.7253), "fit_poly": (0.0100, 0.7298), "p2": (0.0114, 0.7286), "three_lc": (0.0016, 0.7244)}
# Table 2 (LSTM, Stack Overflow, 56 clients a round of 342,477, Top-10 %): volume to the clients, to the server; accuracy.
TABLE_2 = {
    "fedavg": (1.0, 1.0, 0.1856),
    "topr": (0.2033, 0.2033, 0.1840),
    "p0": (0.1425, 0.1426, 0.1841),
    "fit_poly": (0.1039, 0.1039, 0.1838),
    "p0_qsgd": (0.0621, 0.0621, 0.1836),
}
# Table 4 (the same, at 100 Mbit/s), milliseconds: a client's decode and encode, the server's, transfers down and up.
TABLE_4 = {
    "fedavg": (0.0, 0.0, 0.0, 0.0, 1398.0, 1360.9),
    "topr": (4.4, 50.1, 3.2, 25.8, 316.7, 390.4),
    "p0": (17.9, 70.7, 18.3, 62.9, 193.6, 195.7),
    "fit_poly": (28.8, 158.6, 18.3, 117.0, 174.2, 142.9),
    "p0_qsgd": (19.0, 71.3, 19.8, 70.6, 85.2, 85.9),
}
# Table 5 (MobileNet, CIFAR-10, 10 clients, Top-10 %): volume, accuracy.
TABLE_5 = {"fedavg": (1.0, 0.8817), "topr": (0.2069, 0.8708), "p0": (0.1475, 0.8758), "fit_poly": (0.1087, 0.8700), "p0_qsgd": (0.0713, 0.8740)}
# Table 6 (NCF, MovieLens-20M, gradients as they are, of which 40 % are zeros): volume, hit rate at 10.
TABLE_6 = {"dense": (1.0, 0.9497), "zeros_skcompress_256": (0.2175, 0.9513), "zeros_p0_qsgd": (0.2063, 0.9496)}
# Fig. 17, DenseNet-40 on CIFAR-10, a rate of 0.001: accuracy of Top-1 % by policy; dense 0.9209, Top-1 % exact 0.9113.
DENSENET = {"dense": 0.9209, "top1": 0.9113, "p0": 0.9149, "p1": 0.8960, "p2": 0.9059}
