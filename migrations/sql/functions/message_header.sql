CREATE FUNCTION compaction_store.message_header(
    p_role text, p_tokens bigint, p_counter text, p_key text, p_call_size bigint, p_receipt text,
    p_meta_commitment bytea
) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT E'\\x000000076d657373616765'::bytea
        || compaction_store.text_field(p_role)
        || compaction_store.number_field(p_tokens)
        || compaction_store.text_field(p_counter)
        || compaction_store.text_field(p_key)
        || compaction_store.number_field(p_call_size)
        || compaction_store.text_field(p_receipt)
        || compaction_store.field(p_meta_commitment)
$$;
