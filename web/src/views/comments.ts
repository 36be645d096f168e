import { usePreference } from '../shell/preferences';

/** A comment of the person on a line of the diff. */
export interface Comment {
  path: string;
  /** The number of the line: as it is now, or of a removed one as it was. */
  line: number;
  removed: boolean;
  code: string;
  text: string;
}

export const placeOf = ({ path, line, removed }: Pick<Comment, 'path' | 'line' | 'removed'>): string =>
  `${path}:${removed ? '-' : ''}${line}`;

interface Comments {
  all: Comment[];
  put: (comment: Comment) => void;
  clear: () => void;
}

/** The comments on a piece of work that were not sent yet; this browser keeps them. */
export function useComments(id: string): Comments {
  const [kept, keep] = usePreference(`comments.${id}`, '[]');
  const all = JSON.parse(kept) as Comment[];
  const put = (comment: Comment) => {
    const others = all.filter((one) => placeOf(one) !== placeOf(comment));
    keep(JSON.stringify(comment.text.trim() ? [...others, comment] : others));
  };
  return { all, put, clear: () => keep('[]') };
}

/** The comments as the next message to the agent: file, line and code, then what was said. */
export function asMessage(comments: Comment[], more: string): string {
  const parts = comments.map(({ path, line, removed, code, text }) => {
    const mark = '`'.repeat(Math.max(3, ...[...code.matchAll(/`+/g)].map(([ticks]) => ticks.length + 1)));
    const where = removed ? `${path}, the removed line ${line}` : `${path}, line ${line}`;
    return `${where}:\n${mark}\n${code}\n${mark}\n${text.trim()}`;
  });
  const head = 'Comments on your changes, each with the line that it is about:';
  return [more.trim(), head, ...parts].filter(Boolean).join('\n\n');
}
