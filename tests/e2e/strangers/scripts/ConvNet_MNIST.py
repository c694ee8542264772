"""A network on MNIST with the habits of the Batch AI quickstart: two folders as arguments."""

import argparse
import os
import sys

import cntk as C


def create_reader(path, is_training):
    features = C.io.StreamDef(field="features", shape=28 * 28)
    labels = C.io.StreamDef(field="labels", shape=10)
    streams = C.io.StreamDefs(features=features, labels=labels)
    sweeps = C.io.INFINITELY_REPEAT if is_training else 1
    deserializer = C.io.CTFDeserializer(path, streams)
    return C.io.MinibatchSource(deserializer, randomize=is_training, max_sweeps=sweeps)


def convnet_mnist(data_path, model_path, epoch_size, max_epochs=3, minibatch_size=64):
    x = C.input_variable((1, 28, 28))
    y = C.input_variable(10)
    z = C.layers.Sequential([C.layers.Convolution2D((5, 5), 32), C.layers.Dense(10)])(x)
    loss = C.losses.cross_entropy_with_softmax(z, y)
    metric = C.metrics.classification_error(z, y)
    printer = C.logging.ProgressPrinter(tag="Training", num_epochs=max_epochs)
    learner = C.learners.sgd(z.parameters, lr=0.03)
    trainer = C.Trainer(z, (loss, metric), learner, printer)

    train = create_reader(os.path.join(data_path, "Train-28x28_cntk_text.txt"), True)
    inputs = {x: train.streams.features, y: train.streams.labels}
    for epoch in range(max_epochs):
        seen = 0
        while seen < epoch_size:
            data = train.next_minibatch(min(minibatch_size, epoch_size - seen), input_map=inputs)
            trainer.train_minibatch(data)
            seen += data[y].num_samples
        trainer.summarize_training_progress()
        z.save(os.path.join(model_path, "ConvNet_MNIST_{}.dnn".format(epoch)))

    test = create_reader(os.path.join(data_path, "Test-28x28_cntk_text.txt"), False)
    inputs = {x: test.streams.features, y: test.streams.labels}
    trainer.test_minibatch(test.next_minibatch(1024, input_map=inputs))
    trainer.summarize_test_progress()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-datadir", "--datadir", required=True)
    parser.add_argument("-outputdir", "--outputdir", required=True)
    parser.add_argument("-epoch_size", "--epoch_size", type=int, default=60000)
    args = parser.parse_args()
    if not os.path.isdir(args.outputdir):
        sys.exit("no folder %s" % args.outputdir)
    convnet_mnist(args.datadir, args.outputdir, args.epoch_size)
