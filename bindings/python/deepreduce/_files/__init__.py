"""Files: atomic writes, .npz, and the files of torch.save."""
