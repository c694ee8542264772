import com.azure.core.util.BinaryData;
import com.azure.identity.DefaultAzureCredentialBuilder;
import com.azure.storage.blob.BlobContainerClient;
import com.azure.storage.blob.BlobServiceClient;
import com.azure.storage.blob.BlobServiceClientBuilder;

/** Writes a blob with a token of Microsoft Entra ID, and reads it with the account key. */
public class Storage {
    public static void main(String[] arguments) {
        BlobServiceClient signedIn = new BlobServiceClientBuilder()
            .endpoint(System.getenv("AZURE_STORAGE_BLOB_ENDPOINT"))
            .credential(new DefaultAzureCredentialBuilder().build())
            .buildClient();
        BlobContainerClient container = signedIn.createBlobContainerIfNotExists("of-java");
        container.getBlobClient("a b.txt").upload(BinaryData.fromString("from java"), true);
        BlobServiceClient withKey = new BlobServiceClientBuilder()
            .connectionString(System.getenv("AZURE_STORAGE_CONNECTION_STRING"))
            .buildClient();
        System.out.println(withKey.getBlobContainerClient("of-java")
            .getBlobClient("a b.txt").downloadContent());
        signedIn.deleteBlobContainer("of-java");
        System.exit(0); // threads of the HTTP client would stay
    }
}
