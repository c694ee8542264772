package s3

type CopyObjectInput struct{ CopySource *string }
