import { useCallback, useRef } from 'react';
import { usePreference } from '../shell/preferences';
import type { DiffFile } from './patch';

/** A short name of what a file's diff says: one that changes is to be reviewed again. */
function printOf(file: DiffFile): string {
  let print = 0;
  for (const { kind, text } of file.lines)
    for (const letter of `${kind}${text}\n`) print = (print * 31 + letter.charCodeAt(0)) | 0;
  return (print >>> 0).toString(36);
}

const prints = new WeakMap<DiffFile, string>();

function known(file: DiffFile): string {
  const print = prints.get(file) ?? printOf(file);
  prints.set(file, print);
  return print;
}

/** The files of a diff that a person has reviewed as they are now; this browser keeps them. */
export function useReviewed(id: string) {
  const [kept, keep] = usePreference(`reviewed.${id}`, '{}');
  const files = JSON.parse(kept) as Record<string, string>;
  const now = useRef({ files, keep });
  now.current = { files, keep };
  // The same at all times, so that only the file is drawn that was marked.
  const mark = useCallback((file: DiffFile, reviewed: boolean) => {
    const { [file.path]: _, ...others } = now.current.files;
    now.current.keep(JSON.stringify(reviewed ? { ...others, [file.path]: known(file) } : others));
  }, []);
  return { has: (file: DiffFile) => files[file.path] === known(file), mark };
}
