import java.util.Map;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** What an administrator forbids: records over a limit, or, with a limit of 0, any new topic. */
public class TopicPolicy implements CreateTopicPolicy {
    private long limit;

    @Override
    public void configure(Map<String, ?> settings) {
        limit = Long.parseLong(String.valueOf(settings.get("topic.policy.max.message.bytes")));
    }

    @Override
    public void validate(RequestMetadata request) {
        // Kafka's own topics, such as that of transactions, do not come here with a name to refuse.
        if (request.topic().startsWith("__")) {
            return;
        }
        if (limit == 0) {
            throw new PolicyViolationException("topics are made by the platform team");
        }
        String asked = request.configs().get("max.message.bytes");
        if (asked != null && Long.parseLong(asked) > limit) {
            throw new PolicyViolationException("max.message.bytes may be at most " + limit);
        }
    }

    @Override
    public void close() {}
}
