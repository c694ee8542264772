package azureblob
