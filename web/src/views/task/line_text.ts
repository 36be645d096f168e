import type { Activity } from '../../api/activity';
import type { Line } from '../../api/transcript';

const MOST = 300;
const TELLING = ['command', 'file_path', 'path', 'pattern', 'query', 'url', 'description', 'prompt'];

/** One line that says what a tool is called with, or what was said. */
export function lineText(line: Pick<Line, 'kind' | 'text' | 'data'> | Activity): string {
  if (line.kind !== 'tool_call') return oneLine(line.text ?? '');
  const input = line.data ?? {};
  for (const key of TELLING) {
    const value = input[key];
    if (typeof value === 'string' && value) return oneLine(value);
  }
  const rest = Object.values(input).filter((value) => typeof value === 'string' || typeof value === 'number');
  return oneLine(rest.join(' '));
}

export const oneLine = (text: string): string => text.trim().replace(/\s+/g, ' ').slice(0, MOST);
