"""A user's model with everything whose state a checkpoint must hold."""

import keras


def build_model(schema, hyperparameters):
    inputs = {feature.name: keras.Input((1,), name=feature.name) for feature in schema.features}
    x = keras.layers.Concatenate()(list(inputs.values()))
    return compiled(inputs, hidden(x), hyperparameters)


def hidden(x):
    x = keras.layers.Dense(8, activation="relu")(x)
    x = keras.layers.BatchNormalization()(x)
    return keras.layers.Dropout(0.3, seed=7)(x)


def compiled(inputs, x, hyperparameters):
    outputs = keras.layers.Dense(1, activation="sigmoid")(x)
    model = keras.Model(inputs, outputs)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, 2000, warmup_target=hyperparameters.get("learning_rate", 0.01), warmup_steps=20
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(schedule),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model
