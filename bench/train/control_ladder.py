"""The ladder of plans of the controller's measurements, in virtual time (bench/results) and of trainings (control_live.py)."""

TOP = "sparsify=topr(ratio={}) feedback=residual index=golomb value=log_quant"
LADDER = {
    "dense": None,
    "half": "feedback=residual index=all value=half",
    "8 bit": "feedback=residual index=all value=uniform_quant(bits=8)",
    "4 bit": "feedback=residual index=all value=uniform_quant(bits=4)",
    "top 10 %": TOP.format(0.1),
    "top 1 %": TOP.format(0.01),
}
