"""A small convolutional classifier on the default preprocessing, using the image only."""

import keras


def build_model(schema, hyperparameters):
    inputs = {
        "image": keras.Input((8, 8, 1), name="image"),
        "camera": keras.Input((), name="camera", dtype="int64"),
    }
    x = keras.layers.Conv2D(8, 3, activation="relu")(inputs["image"])
    x = keras.layers.GlobalMaxPooling2D()(x)
    x = keras.layers.Dense(16, activation="relu")(x)
    x = keras.layers.Concatenate()([x, keras.layers.Embedding(8, 2)(inputs["camera"])])
    outputs = keras.layers.Dense(len(schema.classes), activation="softmax")(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model
