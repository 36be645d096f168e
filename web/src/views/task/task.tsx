export const View = () => null;
