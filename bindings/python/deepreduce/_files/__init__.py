"""Files: written whole or not at all, .npz, and those of torch.save."""
