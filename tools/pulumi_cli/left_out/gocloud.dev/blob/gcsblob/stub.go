package gcsblob

const Scheme = "gs"
