"""Keras 3 over TensorFlow with compressed gradients, on two devices that one CPU plays."""

import keras
import numpy as np
import tensorflow as tf

import deepreduce.keras

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
PLAN = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant"

keras.utils.set_random_seed(1)
labels = np.random.randint(10, size=4096)
x = np.random.randn(10, 64)[labels] + 0.8 * np.random.randn(4096, 64)  # points of 10 clusters
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.layers.Dense(256, "relu"), keras.layers.Dense(10)])
    optimizer = deepreduce.keras.compress(keras.optimizers.SGD(0.2), PLAN)  # the one line
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
model.fit(x, labels, batch_size=64, epochs=2, verbose=2)

stats = optimizer.compression.stats()
print(f"accuracy {model.evaluate(x, labels, verbose=0)[1]:.3f}; a replica sends {stats.row} bytes a step instead of {stats.dense}")
