-- Returns a name-based UUID, version 8: the first 128 bits of SHA-256 over a fixed namespace and the name.
CREATE FUNCTION compaction_store.thread_uid(p_tenant text, p_thread_id text) RETURNS uuid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_digest bytea := substring(
        sha256(E'\\x6f0b1c7e52a45d0e9c3ba1d5f2e84790'::bytea || compaction_store.name(p_tenant, p_thread_id)) FOR 16
    );
BEGIN
    v_digest := set_byte(v_digest, 6, get_byte(v_digest, 6) & 15 | 128);
    v_digest := set_byte(v_digest, 8, get_byte(v_digest, 8) & 63 | 128);
    RETURN encode(v_digest, 'hex')::uuid;
END
$$;
