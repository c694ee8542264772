"""Export runs to TensorBoard and MLflow. Start in `tensorboard`."""
