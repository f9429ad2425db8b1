// A writer of samples that has nothing of rollog in it: Kafka's Java client and Apache Avro.
//
// It reads the tasks of a run, answers each training task with random words, and writes the sample. A run trains such
// samples where its settings name this writer: [groups] other_writers = ["teacher"]. docs/writers.md says what a
// sample must hold; replace `answer` by whatever generates for you.
//
//     javac -cp 'examples/foreign_writer/lib/*' -d build examples/foreign_writer/SampleWriter.java
//     java -cp 'examples/foreign_writer/lib/*:build' SampleWriter --broker localhost:9092 --run rollog.first \
//         --writer teacher --tokenizer model/tokenizer.json --schemas schemas
//
// For a run with a registry give --registry URL in place of --schemas; for a secured cluster --properties FILE.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Reader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.stream.Stream;
import org.apache.avro.Schema;
import org.apache.avro.SchemaNormalization;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.generic.GenericRecordBuilder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class SampleWriter {
    /** What stands before the body of a record: who wrote it with which schema, and how to say so oneself. */
    interface Framing {
        /** The schema a value was written with; null for a value that cannot be read. */
        Schema writerOf(byte[] value) throws Exception;

        /** Bytes before the body of a value. */
        int size();

        /** The schema to write samples with. */
        Schema ofSamples();

        /** The bytes before the body of a sample. */
        byte[] prefix();
    }

    /** Avro's own, broker.framing = "single-object": C3 01 and the CRC-64-AVRO fingerprint, little-endian. */
    static final class SingleObject implements Framing {
        private final Map<Long, Schema> known = new HashMap<>();
        private final Schema samples;

        SingleObject(Path schemas) throws IOException {
            try (Stream<Path> files = Files.walk(schemas)) {
                for (Path file : files.filter(each -> each.toString().endsWith(".avsc")).toList()) {
                    Schema schema = new Schema.Parser().parse(file.toFile());
                    known.put(SchemaNormalization.parsingFingerprint64(schema), schema);
                }
            }
            samples = new Schema.Parser().parse(schemas.resolve("avsc/Sample.avsc").toFile());
        }

        @Override
        public Schema writerOf(byte[] value) {
            if (value.length < size() || value[0] != (byte) 0xC3 || value[1] != 1) {
                return null;
            }
            return known.get(ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN).getLong(2));
        }

        @Override
        public int size() {
            return 10;
        }

        @Override
        public Schema ofSamples() {
            return samples;
        }

        @Override
        public byte[] prefix() {
            ByteBuffer bytes = ByteBuffer.allocate(size()).order(ByteOrder.LITTLE_ENDIAN);
            return bytes.put((byte) 0xC3).put((byte) 1)
                .putLong(SchemaNormalization.parsingFingerprint64(samples)).array();
        }
    }

    /** Confluent's, broker.framing = "registry": a zero byte and the schema's id, big-endian. */
    static final class Registry implements Framing {
        private final HttpClient http = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(5)).build();
        private final ObjectMapper json = new ObjectMapper();
        private final Map<Integer, Schema> known = new HashMap<>();
        private final String url;
        private final int sampleId;

        Registry(String url, String run) throws Exception {
            this.url = url;
            sampleId = ask("/subjects/" + run + ".samples-value/versions/latest").get("id").asInt();
        }

        private JsonNode ask(String path) throws Exception {
            HttpRequest request = HttpRequest.newBuilder(URI.create(url + path)).timeout(Duration.ofSeconds(5)).build();
            HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
            if (answer.statusCode() != 200) {
                throw new IOException(url + path + " answers " + answer.statusCode() + ": " + answer.body());
            }
            return json.readTree(answer.body());
        }

        @Override
        public Schema writerOf(byte[] value) throws Exception {
            if (value.length < size() || value[0] != 0) {
                return null;
            }
            int id = ByteBuffer.wrap(value).getInt(1);
            if (!known.containsKey(id)) {
                known.put(id, new Schema.Parser().parse(ask("/schemas/ids/" + id).get("schema").asText()));
            }
            return known.get(id);
        }

        @Override
        public int size() {
            return 5;
        }

        @Override
        public Schema ofSamples() {
            try {
                return writerOf(prefix());
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public byte[] prefix() {
            return ByteBuffer.allocate(size()).put((byte) 0).putInt(sampleId).array();
        }
    }

    private final Map<String, String> options;
    private final String run;
    private final Framing framing;
    private final List<String> words = new ArrayList<>();
    private final Map<String, Integer> ids = new HashMap<>();
    private long version = -1;
    private String digest = "";

    SampleWriter(Map<String, String> options) throws Exception {
        this.options = options;
        run = options.get("run");
        framing = options.containsKey("registry")
            ? new Registry(options.get("registry"), run)
            : new SingleObject(Path.of(options.get("schemas")));
        // A tokenizer of whole words; for any other, take the library that made it.
        JsonNode vocabulary = new ObjectMapper().readTree(Path.of(options.get("tokenizer")).toFile())
            .get("model").get("vocab");
        vocabulary.properties().forEach(entry -> ids.put(entry.getKey(), entry.getValue().asInt()));
        ids.entrySet().stream().sorted(Map.Entry.comparingByValue()).forEach(entry -> words.add(entry.getKey()));
    }

    private Properties clientSettings() throws IOException {
        Properties settings = new Properties();
        if (options.containsKey("properties")) {
            // How a secured cluster is connected to, as Kafka's own tools read it.
            try (Reader file = Files.newBufferedReader(Path.of(options.get("properties")))) {
                settings.load(file);
            }
        }
        settings.put("bootstrap.servers", options.get("broker"));
        return settings;
    }

    void run() throws Exception {
        Properties reading = clientSettings();
        // Control, weights and ledger are written in transactions: one that was aborted never happened.
        reading.put("isolation.level", "read_committed");
        reading.put("enable.auto.commit", "false");
        Properties writing = clientSettings();
        writing.put("enable.idempotence", "true");
        writing.put("acks", "all");
        int written = 0;
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<TopicPartition> places = new ArrayList<>();
            for (String topic : List.of(run + ".weights", run + ".tasks")) {
                consumer.partitionsFor(topic)
                    .forEach(each -> places.add(new TopicPartition(topic, each.partition())));
            }
            consumer.assign(places);
            consumer.seekToBeginning(places);
            List<GenericRecord> waiting = new ArrayList<>();
            boolean over = false;
            while (!over) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    GenericRecord decoded = decoded(record.value());
                    String name = decoded == null ? "" : decoded.getSchema().getName();
                    switch (name) {
                        case "WeightVersion" -> serve(decoded);
                        case "RolloutTask" -> waiting.add(decoded);
                        case "TaskBatch" ->
                            ((List<?>) decoded.get("tasks")).forEach(task -> waiting.add((GenericRecord) task));
                        case "Stop" -> over = true;
                        default -> { }
                    }
                }
                for (GenericRecord task : List.copyOf(waiting)) {
                    if (version >= (long) task.get("min_version")) {
                        written += answer(task, producer);
                        waiting.remove(task);
                    }
                }
                producer.flush();
            }
        }
        System.out.println(options.get("writer") + " wrote " + written + " samples");
    }

    /** The newest weights: a sample says which version it is meant for, and the first half of its sha256's digits. */
    private void serve(GenericRecord weights) {
        version = (long) weights.get("version");
        digest = weights.get("sha256").toString().substring(0, 16);
    }

    private GenericRecord decoded(byte[] value) throws Exception {
        Schema writer = value == null ? null : framing.writerOf(value);
        if (writer == null) {
            return null;
        }
        var decoder = DecoderFactory.get()
            .binaryDecoder(value, framing.size(), value.length - framing.size(), null);
        return new GenericDatumReader<GenericRecord>(writer).read(null, decoder);
    }

    /** Write a sample for every replica that a task orders; returns how many. */
    private int answer(GenericRecord task, KafkaProducer<byte[], byte[]> producer) throws Exception {
        if (!task.get("kind").toString().equals("training")) {
            return 0;
        }
        long replicas = (long) task.get("num_replicas");
        for (long number = 0; number < replicas; number++) {
            GenericRecord sample = sample(task, (long) task.get("replica") + number);
            int partition = Math.toIntExact((long) task.get("sample_partition"));
            // The future's failure is thrown by the next call of `get`; flush alone would swallow it.
            producer.send(new ProducerRecord<>(run + ".samples", partition, null, encoded(sample))).get();
        }
        return Math.toIntExact(replicas);
    }

    private GenericRecord sample(GenericRecord task, long replica) {
        GenericRecord prompt = (GenericRecord) task.get("prompt");
        GenericRecord sampling = (GenericRecord) task.get("sampling");
        Random random = new Random((long) task.get("seed") + replica);
        int length = 1 + random.nextInt(Math.toIntExact(Math.min(8, (long) sampling.get("max_tokens"))));
        int[] tokens = random.ints(length, 0, words.size()).toArray();
        float[] logprobs = new float[length];
        // Each word is drawn with the same probability: that is the distribution the log-probabilities are of.
        java.util.Arrays.fill(logprobs, (float) -Math.log(words.size()));
        StringBuilder text = new StringBuilder();
        for (int token : tokens) {
            text.append(text.isEmpty() ? "" : " ").append(words.get(token));
        }
        Schema schema = framing.ofSamples();
        Schema segments = schema.getField("segments").schema();
        GenericRecord segment = new GenericRecordBuilder(segments.getElementType())
            .set("version", version).set("weights_digest", digest).set("start", 0L).set("end", (long) length).build();
        long group = (long) task.get("group_id");
        long attempt = (long) task.get("attempt");
        byte[] mask = new byte[length];
        java.util.Arrays.fill(mask, (byte) 1);
        GenericRecordBuilder sample = new GenericRecordBuilder(schema);
        sample.set("sample_id", "g" + group + ".r" + replica + ".a" + attempt);
        for (String same : List.of("task_id", "epoch", "grant_id", "group_id", "attempt", "seed")) {
            sample.set(same, task.get(same));
        }
        return sample
            .set("replica", replica)
            .set("kind", new GenericData.EnumSymbol(schema.getField("kind").schema(), "training"))
            .set("status", new GenericData.EnumSymbol(schema.getField("status").schema(), "finished"))
            .set("worker_id", options.get("writer"))
            .set("prompt_id", prompt.get("prompt_id"))
            .set("temperature", sampling.get("temperature"))
            .set("prompt_token_ids", littleEndian(encode(prompt.get("text").toString())))
            .set("token_ids", littleEndian(tokens))
            .set("behaviour_logprobs", littleEndian(logprobs))
            .set("loss_mask", ByteBuffer.wrap(mask))
            .set("segments", new GenericData.Array<>(segments, List.of(segment)))
            .set("response_text", text.toString())
            .set("reward", length % 2 == 0 ? 1.0 : 0.0)
            .set("metadata", task.get("metadata"))
            .build();
    }

    private int[] encode(String text) {
        return Stream.of(text.trim().split("\\s+")).mapToInt(word -> {
            if (!ids.containsKey(word)) {
                throw new IllegalArgumentException("the tokenizer has no word " + word);
            }
            return ids.get(word);
        }).toArray();
    }

    private byte[] encoded(GenericRecord record) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        bytes.write(framing.prefix());
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
        new GenericDatumWriter<GenericRecord>(record.getSchema()).write(record, encoder);
        encoder.flush();
        return bytes.toByteArray();
    }

    private static ByteBuffer littleEndian(int[] numbers) {
        ByteBuffer bytes = ByteBuffer.allocate(4 * numbers.length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asIntBuffer().put(numbers);
        return bytes;
    }

    private static ByteBuffer littleEndian(float[] numbers) {
        ByteBuffer bytes = ByteBuffer.allocate(4 * numbers.length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asFloatBuffer().put(numbers);
        return bytes;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int index = 0; index + 1 < arguments.length; index += 2) {
            options.put(arguments[index].replaceFirst("^--", ""), arguments[index + 1]);
        }
        for (String needed : List.of("broker", "run", "writer", "tokenizer")) {
            if (!options.containsKey(needed)) {
                System.err.println("--" + needed + " is missing");
                System.exit(2);
            }
        }
        if (options.containsKey("schemas") == options.containsKey("registry")) {
            System.err.println("name either --schemas DIRECTORY or --registry URL");
            System.exit(2);
        }
        new SampleWriter(options).run();
    }
}
