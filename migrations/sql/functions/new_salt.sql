-- Makes a random salt, for entries for which the client has not sent one.
CREATE FUNCTION compaction_store.new_salt() RETURNS bytea
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN substring(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())) FOR 16);
END
$$;
