package s3blob
