-- Raises an error if a receipt is not a JSON object with the pos of a view. Otherwise returns true.
--
-- Like refuse_bad_message, the function is an expression that costs no call for a usual receipt: one that is short,
-- begins with its pos, and has no escape that could hide a second pos.
CREATE FUNCTION compaction_store.refuse_bad_receipt(p_receipt text) RETURNS boolean
LANGUAGE sql
AS $$
    SELECT CASE
        WHEN p_receipt IS NULL THEN true
        WHEN octet_length(p_receipt) <= 4300
            AND p_receipt ~ '^[{]"pos":[0-9]{1,18},'
            AND position('"pos"' IN substr(p_receipt, 7)) = 0
            AND position(E'\\u' IN p_receipt) = 0
            AND octet_length(p_receipt) - octet_length(replace(replace(p_receipt, '{', ''), '[', '')) <= 200
            THEN json_typeof(p_receipt::json) = 'object'
        ELSE compaction_store.refuse_bad_unusual_receipt(p_receipt)
    END
$$;
